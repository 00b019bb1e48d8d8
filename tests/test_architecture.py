"""The package is a spine: a list of modules that, read from top to bottom, is the way an event travels.

The list stands here, and with it the rules that keep it true. Each rule reads source only, gives its violations as
lines of text, and is itself tested on a small package with one violation planted.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
PACKAGE = CHECKOUT / "convlog_sqlite"
MIGRATIONS = CHECKOUT / "migrations"

# A module imports only what stands above it. A folder is one entry.
SPINE = (
    "errors",
    "vocabulary",
    "instants",
    "strictjson",
    "drafts",
    "tenancy",
    "patterns",
    "scrubbing",
    "events",
    "canonical",
    "sealing",
    "kek",
    "header",
    "filesystem",
    "locks",
    "gate",
    "discovery",
    "slotfile",
    "keystore",
    "database",
    "schema",
    "store",
    "budget",
    "follow",
    "projections",
    "views",
    "files",
    "rewriting",
    "rekeying",
    "mirror",
    "retention",
    "residue",
    "redaction",
    "status",
    "findings",
    "tombstones",
    "mirror_check",
    "anchor_check",
    "fork_check",
    "effect_check",
    "reading_check",
    "payload_check",
    "projection_check",
    "walk",
    "verify",
    "coordination",
    "tracing",
    "effects",
    "acting",
    "verbs",
    "listeners",
    "remembering",
    "participants",
    "recalling",
    "moment",
    "joining",
    "replaying",
    "session",
    "redacting",
    "backup",
    "exporting",
    "keeping",
    "branching",
    "labelling",
    "accepting",
    "noting",
    "projecting",
    "viewing",
    "recollecting",
    "log",
    "aio_labelling",
    "aio_erasing",
    "threads",
    "aio_views",
    "aio_replaying",
    "aio_acting",
    "aio_asking",
    "aio_joining",
    "aio_moment",
    "aio_memory",
    "aio_state",
    "aio_backup",
    "store_keys",
    "restoring",
    "aio",
    "aio_keys",
    "adapters",
    "importing",
    "__init__",
    "cli",
    "__main__",
)

# Entries that may import less than what stands above them.
MAY_IMPORT = {
    "adapters": {"errors", "vocabulary", "instants", "strictjson", "drafts", "events"},
    "cli": {"__init__"},
}

# What only one entry knows, so that it can be replaced there.
ONLY_IN = {"apsw": "database", "sqlite_utils": "schema", "typer": "cli"}

# Two SQLite libraries in one process, on one file, undo each other's locks.
FORBIDDEN = {"sqlite3"}

# The rule is about 400 and 40; these leave room for a docstring that explains a format.
MODULE_LINES = 450
ERRORS_LINES = 650  # one tree in one file: it is looked up in, not read through
FUNCTION_LINES = 60


# In pieces, so that this file holds none.
MERGE_MARK = re.compile(r"\s*(" + "<" * 7 + " |" + ">" * 7 + " |" + "=" * 7 + "$)")


# Reading source


@dataclass(frozen=True)
class Module:
    """One file of a package."""

    name: str  # below the package, dotted: "store.append", "store" for its __init__, "__init__" for the package's own
    where: str
    text: str
    tree: ast.Module
    is_folder: bool

    @property
    def entry(self) -> str:
        """The line of the spine that it belongs to."""
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Import:
    """`import target` or `from target import name`."""

    line: int
    target: str
    name: str | None


def modules_of(package: Path) -> list[Module]:
    """Read and parse every file of the package."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        is_folder = parts[-1] == "__init__"
        text = path.read_text(encoding="utf-8")
        name = ".".join(parts[:-1] if is_folder else parts) or "__init__"
        where = path.relative_to(package.parent).as_posix()
        found.append(Module(name, where, text, ast.parse(text, where), is_folder))
    return found


def imports_of(module: Module, package: str) -> Iterator[Import]:
    """Yield every import, wherever it stands; relative ones made absolute."""
    here = [package] if module.name == "__init__" else [package, *module.name.split(".")]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            target = node.module or ""
            if node.level:
                up = node.level - 1 if module.is_folder else node.level
                target = ".".join([*here[: len(here) - up], *filter(None, [target])])
            yield from (Import(node.lineno, target, alias.name) for alias in node.names)


def imports_within(module: Module, package: Path, names: set[str]) -> Iterator[tuple[int, str, str | None]]:
    """Yield line, imported module and imported name of what `module` imports from its own package."""
    for found in imports_of(module, package.name):
        if found.target != package.name and not found.target.startswith(package.name + "."):
            continue
        target = found.target.removeprefix(package.name).removeprefix(".")
        nested = f"{target}.{found.name}".removeprefix(".")
        if found.name is not None and nested in names:
            yield found.line, nested, None
        else:
            yield found.line, target or "__init__", found.name


# Rules about imports


def upward_imports(package: Path, spine: tuple[str, ...]) -> list[str]:
    """Imports of what stands below in the spine, or of more than an entry may know."""
    modules = modules_of(package)
    names = {module.name for module in modules}
    rank = {entry: position for position, entry in enumerate(spine)}
    found = []
    for module in modules:
        for line, target, _ in imports_within(module, package, names):
            entry = target.partition(".")[0]
            if entry == module.entry or not {entry, module.entry} <= rank.keys():
                continue  # what the spine does not list is named by unlisted_modules
            above = rank[entry] < rank[module.entry]
            if not above or entry not in MAY_IMPORT.get(module.entry, {entry}):
                found.append(f"{module.where}:{line} imports {target}")
    return list(dict.fromkeys(found))


def circular_imports(package: Path) -> list[str]:
    """Cycles between the files of one folder, which the spine cannot see."""
    modules = modules_of(package)
    names = {module.name for module in modules}
    edges = {
        module.name: {
            target
            for _, target, _ in imports_within(module, package, names)
            if target != module.name and target.partition(".")[0] == module.entry
        }
        for module in modules
    }
    found = []

    def walk(path: tuple[str, ...]) -> None:
        for target in sorted(edges.get(path[-1], ())):
            if target == path[0]:
                found.append(" -> ".join([*path, target]))
            elif target > path[0] and target not in path:  # each cycle is found from its first name only
                walk((*path, target))

    for name in sorted(edges):
        walk((name,))
    return found


def unlisted_modules(package: Path, spine: tuple[str, ...]) -> list[str]:
    """What is in the package and not in the list, or the other way round."""
    there = {module.entry for module in modules_of(package)}
    return [f"not in the spine: {entry}" for entry in sorted(there - set(spine))] + [
        f"only in the spine: {entry}" for entry in sorted(set(spine) - there)
    ]


def names_that_are_not_public(package: Path) -> list[str]:
    """What the command imports and the package does not offer to everyone."""
    modules = modules_of(package)
    names = {module.name for module in modules}
    public = {
        constant.value
        for module in modules
        if module.name == "__init__"
        for node in module.tree.body
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == "__all__" for target in node.targets)
        for constant in ast.walk(node.value)
        if isinstance(constant, ast.Constant)
    }
    return [
        f"{module.where}:{line} imports {name or target}"
        for module in modules
        if module.entry == "cli"
        for line, target, name in imports_within(module, package, names)
        if target == "__init__" and name not in public
    ]


def foreign_imports(package: Path, declared: set[str]) -> list[str]:
    """Other people's packages: undeclared ones, forbidden ones, and those that only one entry may know."""
    found = []
    for module in modules_of(package):
        for wanted in imports_of(module, package.name):
            root = wanted.target.partition(".")[0]
            misplaced = ONLY_IN.get(root, module.entry) != module.entry
            unknown = root not in declared | sys.stdlib_module_names | {package.name}
            if root in FORBIDDEN or misplaced or unknown:
                found.append(f"{module.where}:{wanted.line} imports {root}")
    return list(dict.fromkeys(found))


def declared_dependencies(pyproject: Path) -> set[str]:
    """Import names of what the project says it needs to run."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    names = (re.match(r"[\w-]+", requirement) for requirement in project["dependencies"])
    return {name.group().replace("-", "_") for name in names if name}


# Rules about size


def merge_marks(package: Path) -> list[str]:
    """Lines that a merge left, in code and in texts: Python does not mind them in a docstring."""
    return [
        f"{module.where}:{number}"
        for module in modules_of(package)
        for number, line in enumerate(module.text.splitlines(), 1)
        if MERGE_MARK.match(line)
    ]


def long_modules(package: Path, limit: int) -> list[str]:
    """Files of more than `limit` lines."""
    return [
        f"{module.where}: {lines} lines"
        for module in modules_of(package)
        if (lines := len(module.text.splitlines())) > limit
    ]


def long_functions(package: Path, limit: int) -> list[str]:
    """Functions and methods of more than `limit` lines, docstring included."""
    found = []
    for module in modules_of(package):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > limit:
                    found.append(f"{module.where}:{node.lineno} {node.name}: {lines} lines")
    return found


# Rules about SQL

SQL = re.compile(
    r"""\s*(?: (?:SELECT|INSERT|UPDATE|DELETE|REPLACE|CREATE|DROP|ALTER|PRAGMA|BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE
                 |ATTACH|DETACH|VACUUM|ANALYZE|REINDEX|EXPLAIN|WHERE|ORDER\ BY|GROUP\ BY|LIMIT|AND)\b
             | WITH\s+(?:RECURSIVE\b|\w+\s*(?:\(|AS\b))
             | (?i:select\s.*\sfrom\s|insert\s+(?:or\s+\w+\s+)?into\s|replace\s+into\s|update\s+\w+\s+set\s
                 |delete\s+from\s+\w+(?:\s+where\b|\s*;?\s*$)|create\s+(?:\w+\s+)?(?:table|index|trigger|view)\s
                 |drop\s+(?:table|index|trigger|view)\s|pragma\s+\w+\s*(?:=|\(|;|$)|begin\s+(?:immediate|exclusive))
           )""",
    re.VERBOSE | re.DOTALL,
)
STATEMENT_NAME = re.compile(r"_?[A-Z][A-Z0-9_]*")
ONE_TABLE = r"(?:\w+\.)?\w+(?:\s+AS\s+\w+)?"
TABLE_LIST = re.compile(
    rf"\b(?:FROM|JOIN|INTO|UPDATE(?:\s+OR\s+\w+)?|TABLE)\s+({ONE_TABLE}(?:\s*,\s*{ONE_TABLE})*)",
    re.IGNORECASE,
)
TABLE_CHANGE = re.compile(
    r"""\bCREATE\s+(?:VIRTUAL\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?["']?(?P<created>\w+)
      | \bDROP\s+TABLE\s+(?:IF\s+EXISTS\s+)?["']?(?P<dropped>\w+)
      | \bALTER\s+TABLE\s+["']?(?P<old>\w+)["']?\s+RENAME\s+TO\s+["']?(?P<new>\w+)""",
    re.IGNORECASE | re.VERBOSE,
)


def docstrings_of(tree: ast.Module) -> set[int]:
    """Strings that stand alone say something to the reader only."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def sql_strings(node: ast.AST, ignored: set[int]) -> Iterator[ast.Constant]:
    """Yield the strings below `node` that start as SQL does."""
    for part in ast.walk(node):
        is_text = isinstance(part, ast.Constant) and isinstance(part.value, str)
        if is_text and id(part) not in ignored and SQL.match(part.value):
            yield part


def constant_statements(module: Module) -> Iterator[tuple[str, list[ast.Constant]]]:
    """Yield the name and the SQL of each UPPER_CASE constant of the module."""
    for node in module.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        is_constant = value is not None and names and all(map(STATEMENT_NAME.fullmatch, names))
        if is_constant and (statements := list(sql_strings(value, set()))):
            yield names[0], statements


def sql_outside_constants(package: Path) -> list[str]:
    """SQL that is not the value of an UPPER_CASE constant of its module."""
    found = []
    for module in modules_of(package):
        allowed = {id(text) for _, statements in constant_statements(module) for text in statements}
        found.extend(
            f"{module.where}:{text.lineno} {text.value.strip()[:40]!r}"
            for text in sql_strings(module.tree, docstrings_of(module.tree) | allowed)
        )
    return found


def composed_sql(package: Path) -> list[str]:
    """SQL that is put together when it runs: f-strings, +, %, format, join, replace."""
    modules = modules_of(package)
    statements = {name for module in modules for name, _ in constant_statements(module)}

    def is_sql(node: ast.AST) -> bool:
        return any(
            (isinstance(part, ast.Constant) and isinstance(part.value, str) and SQL.match(part.value))
            or (isinstance(part, ast.Name) and part.id in statements)
            for part in ast.walk(node)
        )

    def composes(node: ast.AST) -> bool:
        match node:
            case ast.JoinedStr(values=parts):
                return any(isinstance(part, ast.FormattedValue) for part in parts) and is_sql(node)
            case ast.BinOp(left=left, op=ast.Add() | ast.Mod(), right=right):
                return is_text(left) or is_text(right)
            case ast.AugAssign(op=ast.Add() | ast.Mod(), value=value):
                return is_text(value)
            case ast.Call(func=ast.Attribute(value=value, attr="format" | "format_map" | "replace")):
                return is_text(value)
            case ast.Call(func=ast.Attribute(attr="join"), args=[argument]):
                return is_sql(node.func) or is_sql(argument)
        return False

    def is_text(node: ast.AST) -> bool:
        """Whether the operand itself is SQL, rather than something that was read with SQL."""
        match node:
            case ast.Constant() | ast.Name() | ast.JoinedStr():
                return is_sql(node)
            case ast.BinOp(left=left, right=right):
                return is_text(left) or is_text(right)
            case ast.Subscript(value=value) | ast.IfExp(body=value):
                return is_text(value)
        return False

    return [
        f"{module.where}:{node.lineno} {ast.unparse(node)[:60]}"
        for module in modules
        for node in ast.walk(module.tree)
        if composes(node)
    ]


def tables_in(migrations: Path) -> set[str]:
    """Names of the tables that are there when every migration was applied."""
    tables: set[str] = set()
    for path in sorted([*migrations.glob("*.sql"), *migrations.glob("*.py")]):
        for change in TABLE_CHANGE.finditer(path.read_text(encoding="utf-8")):
            tables -= {change["dropped"], change["old"]}
            tables |= {name for name in (change["created"], change["new"]) if name}
    return tables


def tables_named(statement: str) -> set[str]:
    """Names after FROM, JOIN, INTO, UPDATE and TABLE."""
    named = set()
    for listed in TABLE_LIST.finditer(statement):
        for item in listed[1].split(","):
            named.add(item.split()[0].rpartition(".")[2].lower())
    return named


def shared_tables(package: Path, migrations: Path) -> list[str]:
    """Tables whose names stand in the SQL of two entries. `verify` and what it is made of may read any table."""
    owners: dict[str, set[str]] = {table: set() for table in tables_in(migrations)}
    for module in modules_of(package):
        for _, statements in constant_statements(module):
            for text in statements:
                only_reads = re.match(r"\s*(SELECT|WITH|EXPLAIN)\b", text.value, re.IGNORECASE)
                looks = ("verify", "walk", "tombstones", "effect_check", "fork_check", "anchor_check")
                looks += ("reading_check",)
                if module.entry in looks and only_reads:
                    continue
                for table in owners.keys() & tables_named(text.value):
                    owners[table].add(module.entry)
    return [
        f"{table}: {' and '.join(sorted(entries))}"
        for table, entries in sorted(owners.items())
        if len(entries) > 1
    ]


# The rules, held against the package


def assert_none(violations: list[str]) -> None:
    """Fail with every violation, one a line."""
    assert not violations, "\n".join(["", *violations])


def test_a_module_imports_only_what_stands_above_it():
    """No import goes up the spine, wherever in a file it stands."""
    assert_none(upward_imports(PACKAGE, SPINE))


def test_no_cycle_inside_a_folder():
    """The files of a folder have an order too."""
    assert_none(circular_imports(PACKAGE))


def test_the_spine_lists_every_module():
    """A new module is given its place, and a removed one loses it."""
    assert_none(unlisted_modules(PACKAGE, SPINE))


def test_the_command_uses_public_names_only():
    """Whatever the command does, a caller of the library can do."""
    assert_none(names_that_are_not_public(PACKAGE))


def test_foreign_packages_are_declared_and_known_in_one_place():
    """The package imports the standard library and its declared dependencies, each where it belongs."""
    assert_none(foreign_imports(PACKAGE, declared_dependencies(CHECKOUT / "pyproject.toml")))


def test_modules_are_short():
    """A module can be read in one sitting; the tree of errors stands in one."""
    errors = "convlog_sqlite/errors.py"
    assert_none([long for long in long_modules(PACKAGE, MODULE_LINES) if not long.startswith(errors)])
    assert_none([long for long in long_modules(PACKAGE, ERRORS_LINES) if long.startswith(errors)])


def test_no_merge_is_left_half_done():
    """Neither in code nor in a docstring that is documentation."""
    assert_none(merge_marks(PACKAGE))


def test_functions_are_short():
    """A function fits on a screen."""
    assert_none(long_functions(PACKAGE, FUNCTION_LINES))


def test_sql_stands_in_constants():
    """All SQL of a module is at its top, under UPPER_CASE names."""
    assert_none(sql_outside_constants(PACKAGE))


def test_sql_is_never_put_together():
    """A statement is in the source as it is run."""
    assert_none(composed_sql(PACKAGE))


def test_a_table_has_one_owner():
    """Each table of the migrations is named in the SQL of one entry of the spine only."""
    assert_none(shared_tables(PACKAGE, MIGRATIONS))


# The rules, held against planted violations

SMALL_SPINE = ("errors", "vocabulary", "drafts", "database", "store", "verify", "adapters", "__init__", "cli")
SOUND = {
    "__init__.py": "from convlog_sqlite.store import append\n\n__all__ = ['append']\n",
    "errors.py": "class StoreError(Exception): ...\n",
    "vocabulary.py": "",
    "drafts.py": "from .errors import StoreError\nTEXT = f'{StoreError} update it'\n",
    "database.py": "import apsw\nfrom convlog_sqlite import errors\nBEGIN = 'BEGIN IMMEDIATE'\n",
    "store/__init__.py": "from convlog_sqlite.store.append import append\n",
    "store/append.py": "'''SELECT is a word.'''\nINSERT = 'INSERT INTO events SELECT 1 FROM names, heads AS h'\n"
    "from ..database import BEGIN\ndef append(db):\n    return db(INSERT)[0] + db(BEGIN)[1]\n",
    "verify.py": "COUNT = 'SELECT count(*) FROM events JOIN names'\n",
    "adapters/__init__.py": "from convlog_sqlite.drafts import TEXT\nfrom .codex import read\n",
    "adapters/codex.py": "import json\ndef read(): ...\n",
    "cli/__init__.py": "import typer\nfrom convlog_sqlite import append\nfrom convlog_sqlite.cli import daily\n",
    "cli/daily.py": "",
}
SMALL_MIGRATION = """
CREATE TABLE events (pos INTEGER) STRICT;
CREATE TABLE IF NOT EXISTS names (id INTEGER);
CREATE TABLE old (id INTEGER); ALTER TABLE old RENAME TO heads; CREATE TABLE spare (x); DROP TABLE spare;
"""

Rule = Callable[[Path], list[str]]
RULES: dict[str, Rule] = {
    "upward": lambda package: upward_imports(package, SMALL_SPINE),
    "circular": circular_imports,
    "unlisted": lambda package: unlisted_modules(package, SMALL_SPINE),
    "not public": names_that_are_not_public,
    "foreign": lambda package: foreign_imports(package, {"apsw", "typer"}),
    "merge mark": merge_marks,
    "long module": lambda package: long_modules(package, 20),
    "long function": lambda package: long_functions(package, 5),
    "sql outside": sql_outside_constants,
    "composed sql": composed_sql,
    "shared table": lambda package: shared_tables(package, package.parent / "migrations"),
}


@pytest.fixture
def plant(tmp_path):
    """Make the small package, with files added or replaced; gives its folder."""

    def make(changed: dict[str, str]) -> Path:
        files = SOUND | changed
        package = tmp_path / "convlog_sqlite"
        for name, text in files.items():
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            (package / name).write_text(text, encoding="utf-8")
        (tmp_path / "migrations").mkdir()
        (tmp_path / "migrations" / "0001_events.sql").write_text(SMALL_MIGRATION, encoding="utf-8")
        return package

    return make


def test_a_sound_package_breaks_no_rule(plant):
    """The rules have nothing to say about a package that keeps them."""
    package = plant({})
    assert {name: [] for name in RULES} == {name: rule(package) for name, rule in RULES.items()}


@pytest.mark.parametrize(
    ("rule", "file", "text", "expected"),
    [
        ("upward", "errors.py", "from convlog_sqlite.store import append", "errors.py:1 imports store"),
        ("upward", "errors.py", "import convlog_sqlite.store.append", "errors.py:1 imports store.append"),
        ("upward", "errors.py", "from convlog_sqlite import verify", "errors.py:1 imports verify"),
        ("upward", "errors.py", "def late():\n    from .verify import COUNT", "errors.py:2 imports verify"),
        ("upward", "errors.py", "from . import StoreError", "errors.py:1 imports __init__"),
        ("upward", "store/append.py", "from ..verify import COUNT", "store/append.py:1 imports verify"),
        ("upward", "store/__init__.py", "from .. import verify", "store/__init__.py:1 imports verify"),
        ("upward", "adapters/codex.py", "from ..store import append", "adapters/codex.py:1 imports store"),
        ("upward", "cli/daily.py", "from convlog_sqlite import errors", "cli/daily.py:1 imports errors"),
        ("upward", "cli/daily.py", "from ..store import append", "cli/daily.py:1 imports store"),
        ("upward", "store/new.py", "import convlog_sqlite.cli", "store/new.py:1 imports cli"),
        (
            "circular",
            "adapters/codex.py",
            "from convlog_sqlite.adapters import read",
            "adapters -> adapters.codex -> adapters",
        ),
        ("unlisted", "helpers.py", "", "not in the spine: helpers"),
        ("not public", "cli/daily.py", "from convlog_sqlite import secret", "cli/daily.py:1 imports secret"),
        ("not public", "cli/daily.py", "import convlog_sqlite", "cli/daily.py:1 imports __init__"),
        ("foreign", "store/append.py", "import apsw.ext", "store/append.py:1 imports apsw"),
        (
            "foreign",
            "store/append.py",
            "def f():\n    from apsw import Error",
            "store/append.py:2 imports apsw",
        ),
        ("foreign", "database.py", "import sqlite3", "database.py:1 imports sqlite3"),
        ("foreign", "errors.py", "from requests import get", "errors.py:1 imports requests"),
        ("merge mark", "errors.py", '"""\n    ' + "<" * 7 + ' HEAD\n"""', "errors.py:2"),
        ("long module", "errors.py", "x = 1\n" * 20, "errors.py: 21 lines"),
        ("long function", "errors.py", "def f():\n" + "    x = 1\n" * 5, "errors.py:1 f: 6 lines"),
        (
            "long function",
            "errors.py",
            "class A:\n  async def f():\n" + "    x = 1\n" * 5,
            "errors.py:2 f: 6 lines",
        ),
        ("sql outside", "store/append.py", "def f(db):\n    db('SELECT 1')", "append.py:2 'SELECT 1'"),
        ("sql outside", "store/append.py", "def f():\n    SQL = 'SELECT 1'", "append.py:2 'SELECT 1'"),
        ("sql outside", "store/append.py", "query = '''\n  PRAGMA x'''", "append.py:1 'PRAGMA x'"),
        ("sql outside", "store/append.py", "query = 'select a from b '", "append.py:1 'select a from b'"),
        ("sql outside", "store/append.py", "x = 'WITH a AS (SELECT 1) SELECT 2'", "append.py:1 'WITH a AS"),
        ("sql outside", "store/append.py", "class A:\n    SQL = 'DELETE FROM a'", "append.py:2 'DELETE FROM"),
        ("composed sql", "store/append.py", "A = f'SELECT {1}'", "append.py:1 f'SELECT"),
        ("composed sql", "store/append.py", "A = 'SELECT 1'\nb = f'{A} LIMIT 1'", "append.py:2 f'{A}"),
        ("composed sql", "store/append.py", "A = 'SELECT 1'\nb = A + ' -- x'", "append.py:2 A + "),
        ("composed sql", "store/append.py", "A = 'SELECT %s'\nb = A % 1", "append.py:2 A % 1"),
        ("composed sql", "store/append.py", "A = {1: 'SELECT 1'}\nb = A[1] + 'x'", "append.py:2 A[1] +"),
        ("composed sql", "store/append.py", "a = ''\na += ' WHERE b'", "append.py:2 a += "),
        ("composed sql", "store/append.py", "A = 'SELECT {}'.format(1)", "append.py:1 'SELECT {}'.format"),
        ("composed sql", "store/append.py", "b = ' AND '.join(c)", "append.py:1 ' AND '.join"),
        (
            "composed sql",
            "verify.py",
            "from .store.append import INSERT\nb = INSERT + 'x'",
            "verify.py:2 INSERT +",
        ),
        ("shared table", "drafts.py", "A = 'UPDATE names SET a = 1'", "names: drafts and store"),
        (
            "shared table",
            "drafts.py",
            "A: str = ['SELECT 1 FROM x, main.heads']",
            "heads: drafts and store",
        ),
        ("shared table", "verify.py", "A = 'DELETE FROM names'", "names: store and verify"),
    ],
)
def test_a_planted_violation_is_found(plant, rule, file, text, expected):
    """Each rule finds what it is there to find, and says where."""
    found = RULES[rule](plant({file: text + "\n"}))
    assert len(found) == 1, found
    assert expected in found[0]


def test_a_listed_module_that_is_gone_is_found(plant):
    """A name that stays in the list after its module went is a violation too."""
    package = plant({})
    (package / "vocabulary.py").unlink()
    assert ["only in the spine: vocabulary"] == unlisted_modules(package, SMALL_SPINE)


def test_declared_dependencies_are_read_from_the_project():
    """Versions and extras do not count, and the names are those that are imported."""
    assert {"apsw", "sqlite_utils"} <= declared_dependencies(CHECKOUT / "pyproject.toml")
