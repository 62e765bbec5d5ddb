# Sourced by jobs/quickstart and tests/run: finds a Python and a Java, and keeps a virtual environment up to date.
# Every failure is one sentence on stderr and exit code 1.

fail() {
    echo "error: $*" >&2
    exit 1
}

# Prints the path of the first Python 3.11 or newer that has venv. If PYTHON is set, only that one is tried.
find_python() {
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3 python}; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

# make_environment DIRECTORY WHAT: makes a virtual environment with this project (editable) and what WHAT names: a dependency group
# of pyproject.toml, such as test, or extras in brackets, such as [spark,report]. The current directory must be the checkout.
# Reuses the environment as long as pyproject.toml, WHAT and PYTHON are the same. Writes the stamp last, so that an environment
# whose creation was interrupted is made again.
make_environment() {
    stamp="$2 ${PYTHON:-any} $(cksum <pyproject.toml)"
    if [ "$(cat "$1/.stamp" 2>/dev/null)" = "$stamp" ] && "$1/bin/python" -c '' 2>/dev/null; then
        return 0
    fi
    python=$(find_python) || fail "No Python 3.11 or newer with its venv module was found as ${PYTHON:-python3.13, python3.12, python3.11 or python3}: install one, or name it in PYTHON."
    echo "making the Python environment $1 (once; again when pyproject.toml changes)" >&2
    rm -rf "$1" || fail "The old environment $1 cannot be removed: remove it by hand."
    "$python" -m venv "$1" >&2 || fail "$python could not make a virtual environment in $1: see its message above."
    (
        set -o pipefail
        case "$2" in
            "["*) pip_install "$1" -e ".$2" ;;
            *) pip_install "$1" 'pip>=25.1' && pip_install "$1" -e . --group "$2" ;;  # older versions of pip know no groups
        esac
    ) || fail "pip could not install this project with $2: see its message above; the usual reasons are the network, a proxy, or a full disk."
    echo "$stamp" >"$1/.stamp"
}

# pip_install DIRECTORY ARGUMENTS…
pip_install() {
    python=$1/bin/python
    shift
    "$python" -m pip install --progress-bar off --disable-pip-version-check --no-input "$@" </dev/null | show_steps >&2
}

# Shows the steps of pip that take long: an installation takes half a minute or more.
show_steps() {
    while IFS= read -r line; do
        case "$line" in
            *Downloading*.metadata*) ;;
            *Downloading\ * | *"Using cached "* | *"Building "*": started"* | "Installing collected"*) echo "  ${line#"${line%%[! ]*}"}" ;;
        esac
    done
}

# Fails unless Java 17 or newer runs: JAVA_HOME's if set, else that on the path. Called first: to make the environment takes longer.
require_java() {
    java=java
    if [ -n "${JAVA_HOME:-}" ]; then java=$JAVA_HOME/bin/java; fi
    remedy="install a JDK or JRE 17 or newer, or point JAVA_HOME at one"
    answer=$("$java" -version 2>&1) || fail "Java does not run as '$java': $remedy."
    major=$(printf '%s\n' "$answer" | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${major:-0}" -ge 17 ] || fail "Java ${major:-of unknown version} at '$java' is too old for Spark and Kafka: $remedy."
}
