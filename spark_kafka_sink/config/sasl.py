"""What the SASL options mean together, and Java's JAAS syntax, so that a Spark user's options work as they are.

config/ asks `problems` on the driver; network/sasl reads the same entry again where it connects. Nothing here knows options
beyond SASL's, and nothing opens a file or a connection.
Law: a JAAS text holds a password, so no text of an error quotes any of it, and `parse_jaas` returns what is wrong instead of
raising it, lest a traceback with locals shows the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

PLAIN, OAUTHBEARER, GSSAPI, AWS_MSK_IAM = "PLAIN", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"
SCRAM_SHA_256, SCRAM_SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"

# Mechanism -> the login module that goes with it. Known by its simple name: Databricks, for one, moves Kafka's packages.
LOGIN_MODULES: dict[str, str] = {
    PLAIN: "PlainLoginModule",
    SCRAM_SHA_256: "ScramLoginModule",
    SCRAM_SHA_512: "ScramLoginModule",
    OAUTHBEARER: "OAuthBearerLoginModule",
    GSSAPI: "Krb5LoginModule",
    AWS_MSK_IAM: "IAMLoginModule",
}
_EXAMPLES = {
    "PlainLoginModule": 'org.apache.kafka.common.security.plain.PlainLoginModule required username="…" password="…";',
    "ScramLoginModule": 'org.apache.kafka.common.security.scram.ScramLoginModule required username="…" password="…";',
    "OAuthBearerLoginModule": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
}

# --- JAAS ---------------------------------------------------------------------------------------------------------------


class JaasEntry:
    """One login module and its options. Its repr shows no value."""

    __slots__ = ("_options", "module")

    def __init__(self, module: str, options: dict[str, str]) -> None:
        self.module = module
        self._options = options

    @property
    def simple_name(self) -> str:
        return self.module.rpartition(".")[2]

    def get(self, name: str) -> str | None:
        return self._options.get(name)

    def is_true(self, name: str) -> bool:
        return (self._options.get(name) or "").lower() == "true"

    def names(self) -> list[str]:
        return list(self._options)

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """Options whose name begins with `prefix`, without it."""
        return {name[len(prefix) :]: value for name, value in self._options.items() if name.startswith(prefix)}

    def __repr__(self) -> str:
        return f"JaasEntry({self.module}, {', '.join(self._options)})"


class JaasProblem(NamedTuple):
    text: str


NO_OPTIONS = JaasEntry("", {})

_FLAGS = ("required", "requisite", "sufficient", "optional")
# As java.io.StreamTokenizer reads with the settings of Kafka's JaasConfig: `/` begins a comment wherever it stands outside of
# quotes, a quoted text ends with its line, and what begins with a digit is a number, which Kafka accepts nowhere. A word is made
# of letters (all beyond ASCII too), $ and _, and after its first also of digits, dots and dashes.
_TOKEN = re.compile(
    r"""[\x00-\x20]+ | /\*.*?(?:\*/|\Z) | /[^\r\n]*
    | (?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote))[^\\\r\n])*)(?P<end>(?P=quote)?)
    | (?P<number>[0-9.-][0-9.-]*)
    | (?P<word>[^\x00-\x23%-@\[-^`{-\x9f][^\x00-\x23%-,/:-@\[-^`{-\x9f]*)
    | (?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:(?P<octal>[0-3][0-7]{0,2}|[4-7][0-7]?)|(?P<char>.))", re.DOTALL)
_CONTROL = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

_Token = tuple[str, str]  # (word, number or sign; its text)


def parse_jaas(text: str) -> JaasEntry | JaasProblem:
    """The one entry of a sasl.jaas.config: `module flag name="value" … ;`. Never raises; a problem quotes nothing of `text`."""
    entries: list[JaasEntry] = []
    tokens = list(_tokens(text))
    while tokens:
        end = next((index for index, token in enumerate(tokens) if token == ("sign", ";")), None)
        if end is None:
            return JaasProblem("it does not end with a semicolon outside of quotes")
        entry = _entry(tokens[:end])
        if isinstance(entry, JaasProblem):
            return entry
        entries.append(entry)
        del tokens[: end + 1]
    if len(entries) != 1:
        return JaasProblem("it names no login module" if not entries else "it names more than one login module")
    return entries[0]


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        if match["quote"]:
            yield "word", _ESCAPE.sub(_unescape, match["text"])
        for kind in ("number", "word", "sign"):
            if match[kind]:
                yield kind, match[kind]


def _unescape(match: re.Match[str]) -> str:
    return chr(int(match["octal"], 8)) if match["octal"] else _CONTROL.get(match["char"], match["char"])


def _entry(tokens: list[_Token]) -> JaasEntry | JaasProblem:
    if not tokens or tokens[0][0] != "word":
        return JaasProblem("it does not begin with the name of a login module")
    if len(tokens) < 2 or tokens[1][0] != "word" or tokens[1][1].lower() not in _FLAGS:
        return JaasProblem(f"the login module is not followed by one of {', '.join(_FLAGS)}")
    options: dict[str, str] = {}
    for start in range(2, len(tokens), 3):
        kinds = [kind for kind, _ in tokens[start : start + 3]]
        if kinds != ["word", "sign", "word"] or tokens[start + 1][1] != "=":
            number = len(options) + 1
            return JaasProblem(f'option {number} is not of the form name="value" (values with other than letters need quotes)')
        options[tokens[start][1]] = tokens[start + 2][1]
    return JaasEntry(tokens[0][1], options)


# The options of login modules that are paths of files, to be found where the producer runs.
_FILES = {
    "Krb5LoginModule": ("keyTab", "ticketCache"),
    "OAuthBearerLoginModule": ("ssl.truststore.location", "ssl.keystore.location"),
}


def files_named_in(text: str) -> dict[str, str]:
    """The files that a sasl.jaas.config names, by its options. Empty when it cannot be read, which is for `problems` to tell."""
    entry = parse_jaas(text)
    if isinstance(entry, JaasProblem):
        return {}
    named = {name: kerberos_file(entry.get(name)) for name in _FILES.get(entry.simple_name, ())}
    return {name: file for name, file in named.items() if file}


def with_option(text: str, name: str, value: str) -> str:
    """A sasl.jaas.config that can be read, with one option changed. Never raises."""
    entry = parse_jaas(text)
    if isinstance(entry, JaasProblem):
        return text
    options = entry.with_prefix("") | {name: value}
    return f"{_quoted(entry.module)} required {' '.join(f'{_quoted(key)}={_quoted(each)}' for key, each in options.items())};"


def _quoted(value: str) -> str:
    return '"' + re.sub(r'["\\\r\n]', lambda match: {"\r": r"\r", "\n": r"\n"}.get(match[0], "\\" + match[0]), value) + '"'


def kerberos_file(name: str | None) -> str | None:
    """The path in a name of Kerberos, which may begin with a type. None when it names no file (KEYRING:…)."""
    kind, colon, path = (name or "").partition(":")
    if not colon or not kind.isalpha():
        return name
    return path if kind.upper() == "FILE" else None


# --- WHERE TOKENS COME FROM -----------------------------------------------------------------------------------------------

UNSECURED, CLIENT_CREDENTIALS, JWT_BEARER, TOKEN_FILE = "unsecured", "client credentials", "JWT bearer", "file"
AWS, CALLBACK = "AWS", "callback"

_HANDLERS = {  # simple names of Java classes that sasl.login.callback.handler.class may keep naming
    "OAuthBearerLoginCallbackHandler": CLIENT_CREDENTIALS,
    "OAuthBearerUnsecuredLoginCallbackHandler": UNSECURED,
    "IAMOAuthBearerLoginCallbackHandler": AWS,
}
_RETRIEVERS = {  # likewise for sasl.oauthbearer.jwt.retriever.class
    "DefaultJwtRetriever": CLIENT_CREDENTIALS,
    "ClientCredentialsJwtRetriever": CLIENT_CREDENTIALS,
    "FileJwtRetriever": TOKEN_FILE,
    "JwtBearerJwtRetriever": JWT_BEARER,
}
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*[.:][^\W\d]\w*")
UNSECURED_PREFIX = "unsecuredLogin"


def token_source(values: Mapping[str, Any]) -> str:
    """Which of the sources above gives the tokens of OAUTHBEARER, as Kafka decides it."""
    handler = values["sasl_login_callback_handler_class"]
    if values["sasl_mechanism"] == AWS_MSK_IAM:
        return AWS
    if handler is None and values["sasl_oauthbearer_token_endpoint_url"] is None:
        return UNSECURED
    source = CLIENT_CREDENTIALS if handler is None else _HANDLERS.get(handler.rpartition(".")[2], CALLBACK)
    if source is not CLIENT_CREDENTIALS:
        return source
    retriever = values["sasl_oauthbearer_jwt_retriever_class"]
    source = CLIENT_CREDENTIALS if retriever is None else _RETRIEVERS.get(retriever.rpartition(".")[2], CLIENT_CREDENTIALS)
    is_file = (values["sasl_oauthbearer_token_endpoint_url"] or "").startswith("file:")
    return TOKEN_FILE if is_file and source is CLIENT_CREDENTIALS else source


def client_id_and_secret(values: Mapping[str, Any], entry: JaasEntry) -> tuple[bool, bool]:
    """Whether they are there: the options of KIP-1139, or `clientId` and `clientSecret` of the login module (KIP-768)."""
    return (
        bool(values["sasl_oauthbearer_client_credentials_client_id"] or entry.get("clientId")),
        bool(values["sasl_oauthbearer_client_credentials_client_secret"] or entry.get("clientSecret")),
    )


# --- RULES ----------------------------------------------------------------------------------------------------------------


def problems(values: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the SASL options, by config/'s attribute names. Nothing when SASL is not used."""
    if not values["security_protocol"].startswith("SASL_"):
        return
    mechanism = values["sasl_mechanism"]
    if mechanism not in LOGIN_MODULES:
        default = "" if "sasl.mechanism" in values["given"] else ", the default,"
        yield f"sasl.mechanism={mechanism}{default} is not known; use one of {', '.join(LOGIN_MODULES)}"
        return
    entry = read_entry(values)
    if isinstance(entry, JaasProblem):
        yield f"sasl.jaas.config cannot be read: {entry.text}"
        return
    if entry.module and entry.simple_name != LOGIN_MODULES[mechanism]:
        yield _mismatch(values, entry)
        return
    yield from _RULES[mechanism](values, entry)


def read_entry(values: Mapping[str, Any]) -> JaasEntry | JaasProblem:
    """The login module of sasl.jaas.config; one without a name when the option is not set."""
    secret = values["sasl_jaas_config"]
    return NO_OPTIONS if secret is None else parse_jaas(secret.reveal())


def _mismatch(values: Mapping[str, Any], entry: JaasEntry) -> str:
    mechanism = values["sasl_mechanism"]
    default = "" if "sasl.mechanism" in values["given"] else " (the default)"
    fitting = [name for name, module in LOGIN_MODULES.items() if module == entry.simple_name]
    if not fitting:  # its name is not shown: what stands first may be anything
        return (
            f"sasl.jaas.config names a login module that is not known; sasl.mechanism={mechanism}{default} needs"
            f" {LOGIN_MODULES[mechanism]}"
        )
    return (
        f"sasl.mechanism={mechanism}{default} needs {LOGIN_MODULES[mechanism]}, but sasl.jaas.config names {entry.simple_name};"
        f" for that, set sasl.mechanism to {' or '.join(fitting)}"
    )


def _name_and_password(values: Mapping[str, Any], entry: JaasEntry) -> Iterator[str]:
    module = LOGIN_MODULES[values["sasl_mechanism"]]
    missing = [name for name in ("username", "password") if not entry.get(name)]
    if not entry.module:
        yield (
            f"sasl.mechanism={values['sasl_mechanism']} needs sasl.jaas.config, like {_EXAMPLES[module]}"
            " (a file named by java.security.auth.login.config is not read)"
        )
    elif missing:
        yield f"sasl.jaas.config: {module} needs {' and '.join(missing)}"
    elif not all(_can_be_sent(entry.get(name) or "") for name in ("username", "password")):
        yield f"sasl.jaas.config: {module} takes no username or password with a NUL character or half a surrogate pair"


def _can_be_sent(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _oauthbearer(values: Mapping[str, Any], entry: JaasEntry) -> Iterator[str]:
    handler, retriever = values["sasl_login_callback_handler_class"], values["sasl_oauthbearer_jwt_retriever_class"]
    source = token_source(values)
    if source is CALLBACK and not _DOTTED.fullmatch(handler):
        yield f"sasl.login.callback.handler.class={handler} is no dotted name of a Python function, like package.module.function"
    if retriever is not None and retriever.rpartition(".")[2] not in _RETRIEVERS:
        yield f"sasl.oauthbearer.jwt.retriever.class={retriever} is not known; use one of {', '.join(_RETRIEVERS)}"
    if source is UNSECURED and not entry.with_prefix(UNSECURED_PREFIX):
        yield (
            "sasl.mechanism=OAUTHBEARER needs tokens: set sasl.oauthbearer.token.endpoint.url, or"
            " sasl.login.callback.handler.class to the dotted name of a Python function that returns one"
        )
    if source in (CLIENT_CREDENTIALS, JWT_BEARER, TOKEN_FILE):
        yield from _endpoint(values, source)
    if source is CLIENT_CREDENTIALS and not all(client_id_and_secret(values, entry)):
        yield (
            "sasl.oauthbearer.token.endpoint.url needs sasl.oauthbearer.client.credentials.client.id and …client.secret (or"
            " clientId and clientSecret in sasl.jaas.config)"
        )
    if source is JWT_BEARER and not (
        values["sasl_oauthbearer_assertion_file"] or values["sasl_oauthbearer_assertion_private_key_file"]
    ):
        yield "JwtBearerJwtRetriever needs sasl.oauthbearer.assertion.file or sasl.oauthbearer.assertion.private.key.file"


def _endpoint(values: Mapping[str, Any], source: str) -> Iterator[str]:
    """https, or http on this machine alone: the request carries the client's secret, and the answer a token."""
    key = "sasl.oauthbearer.token.endpoint.url"
    try:
        url = urlsplit(values["sasl_oauthbearer_token_endpoint_url"] or "")
        host, _ = url.hostname, url.port
    except ValueError:
        yield f"{key} is no URL"
        return
    if source is TOKEN_FILE:
        if url.scheme != "file" or not url.path:
            yield f"{key} must be file:///path/to/a/token for FileJwtRetriever"
    elif not host:
        yield f"{key} is not set, or is no URL like https://host/path"
    elif url.username is not None or url.password is not None:
        yield f"{key} must not hold a name or password; use sasl.oauthbearer.client.credentials.client.id and …client.secret"
    elif url.scheme != "https" and not (url.scheme == "http" and host in ("localhost", "127.0.0.1", "::1")):
        yield f"{key} must begin with https:// (http:// is for localhost only), or with file:"


def _gssapi(values: Mapping[str, Any], entry: JaasEntry) -> Iterator[str]:
    option, in_entry = values["sasl_kerberos_service_name"], entry.get("serviceName")
    if not option and not in_entry:
        default = "" if "sasl.mechanism" in values["given"] else " (the default)"
        yield f"sasl.mechanism=GSSAPI{default} needs sasl.kerberos.service.name, the brokers' service name, often kafka"
    elif option and in_entry and option != in_entry:
        yield "sasl.kerberos.service.name and serviceName in sasl.jaas.config differ; remove one of the two"
    # Java's module refuses the same.
    for name, switch in (("keyTab", "useKeyTab"), ("ticketCache", "useTicketCache")):
        if entry.get(name) and not entry.is_true(switch):
            yield f"sasl.jaas.config: {name} has no effect without {switch}=true; set that, or remove {name}"
    if entry.is_true("useKeyTab") and not entry.get("keyTab"):
        yield 'sasl.jaas.config: useKeyTab=true needs keyTab="…", the file with the key of principal="…"'


_AWS_OPTIONS = {"awsProfileName", "awsRoleArn", "awsRoleSessionName", "awsStsRegion", "awsDebugCreds"}


def _aws(_: Mapping[str, Any], entry: JaasEntry) -> Iterator[str]:
    unknown = sorted(set(entry.names()) - _AWS_OPTIONS)
    if unknown:
        yield f"sasl.jaas.config: {len(unknown)} options of IAMLoginModule are not known; use {', '.join(sorted(_AWS_OPTIONS))}"


_RULES = {
    PLAIN: _name_and_password,
    SCRAM_SHA_256: _name_and_password,
    SCRAM_SHA_512: _name_and_password,
    OAUTHBEARER: _oauthbearer,
    GSSAPI: _gssapi,
    AWS_MSK_IAM: _aws,
}
