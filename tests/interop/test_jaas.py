"""sasl.jaas.config is read as Kafka's own client reads it: the usual, the odd and the broken."""

from __future__ import annotations

import base64
from pathlib import Path
from random import Random

from spark_kafka_sink.config.jaas import JaasEntry, parse_jaas
from tests.interop.java import run_java

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
FIXED = [
    f'{SCRAM} required username="alice" password="alice-secret";',
    f"{SCRAM} required\n  username='alice'\n  password='a\"b';\n",
    f'{SCRAM} required username="a\\"b\\\\" password="\\101\\0\\t\\x\\477";',
    f'{SCRAM} required a="b;c" // d="e"\n f=g;',
    f"{SCRAM} required a=b /* c=d */ e=f;",
    f"{SCRAM} REQUIRED a=true b=x9.y-z_$;",
    f"{SCRAM} sufficient;",
    f"{SCRAM} required a=42;",
    f"{SCRAM} required a=-x;",
    f"{SCRAM} required a=b",
    f"{SCRAM};",
    f'"{SCRAM}" required "a b"="c";',
    f"{SCRAM} required a=b; {SCRAM} required;",
    'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/etc/k" principal="a/b@C.D";',
    "com.sun.security.auth.module.Krb5LoginModule required keyTab=/etc/k;",
    f'{SCRAM} required a="zoë\u20ac" b=zoë\u00a0x;',
    f'{SCRAM} required a="one\nb=two";',
    "",
    ";",
]
PIECES = [
    "required", "optional", SCRAM, "kafkashaded.M", "a", "password", "=", " = ", ";", " ", "\n", "\r\n", "\t", '"x y"', "'x y'",
    '"', "'", "\\", '\\"', "\\0", "\\18", "\\n", "//", "/*", "*/", "/", "#", "1", "-", ".", "_", "$", "é", "\u00a0",
    "\x7f", "\x80", "\u20ac", "@", ",", "{", "x1",
]  # fmt: skip
INSIDE = [
    "a",
    " ",
    ";",
    "=",
    "'",
    "\\",
    '\\"',
    "\\'",
    "\\7",
    "\\18",
    "\\377",
    "\\400",
    "\\n",
    "\\x",
    "//",
    "/*",
    "é",
    "\u20ac",
    "\x01",
    "\x80",
]
NAMES = ["a", "pass.word", "b-c", "_x", "$y", "é1", '"d e"', "'f'", "\u20ac"]
BETWEEN = [" ", "\n", "\t ", " /* = ; */ ", " // ;\r\n", ""]
ROUNDS = 2000


def texts() -> list[str]:
    """What is almost right, and what begins well and goes on at random; the same every time."""
    random = Random(7)

    def any_of(choices: list[str], most: int) -> str:
        return "".join(random.choices(choices, k=random.randrange(most)))

    def option() -> str:
        quote = random.choice("\"'")
        value = random.choice([quote + any_of(INSIDE, 6) + quote, random.choice(NAMES)])
        return random.choice(NAMES) + any_of(BETWEEN, 2) + "=" + any_of(BETWEEN, 2) + value + random.choice(BETWEEN)

    begins = ["", f"{SCRAM} required ", f'{SCRAM} required a="b" ', f"{SCRAM} required a="]
    wild = [random.choice(begins) + any_of(PIECES, 8) + random.choice(["", ";", " ;"]) for _ in range(ROUNDS)]
    tame = [f"{SCRAM} required " + "".join(option() for _ in range(random.randrange(4))) + ";" for _ in range(ROUNDS)]
    return FIXED + wild + tame


def ours(text: str) -> str:
    read = parse_jaas(text)
    if not isinstance(read, JaasEntry):
        return "refused"
    options = read.with_prefix("")
    # TreeMap's order is that of UTF-16, which for these characters is that of code points
    return " ".join(map(encoded, [read.module, *(part for name in sorted(options) for part in (name, options[name]))]))


def encoded(text: str) -> str:
    return "=" + base64.b64encode(text.encode()).decode()


def test_a_login_is_read_as_java_reads_it(kafka_jars: Path, tmp_path: Path) -> None:
    sample_texts = texts()
    (tmp_path / "texts").write_text("\n".join(base64.b64encode(text.encode()).decode() for text in sample_texts) + "\n")
    answers = run_java(kafka_jars, Path(__file__).with_name("ReadJaas.java"), tmp_path / "texts").splitlines()
    assert len(answers) == len(sample_texts)
    assert sum(answer != "refused" for answer in answers) > ROUNDS // 2
    assert [(text, answer) for text, answer in zip(sample_texts, answers, strict=True) if ours(text) != answer] == []
