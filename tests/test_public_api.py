"""The public names: what a caller may rely on is listed, explained, and nothing else."""

import importlib
import inspect
import re
import types

import pytest

import convlog_sqlite
from convlog_sqlite import errors


def public_names():
    """What `import convlog_sqlite` offers, but for its own modules, its tools and private names."""
    bound = {
        name
        for name, value in vars(convlog_sqlite).items()
        if not name.startswith("_")
        and not isinstance(value, types.ModuleType)
        and getattr(value, "__module__", None) != "typing"
        and name not in {"annotations", "TYPE_CHECKING"}
    }
    return bound | set(convlog_sqlite._LATER) | {"Payload"}


def drawn_tree(docstring):
    """Parent by child, as the docstring draws them: what stands further right belongs to the line above."""
    parents = {}
    above = []
    for line in docstring.splitlines():
        drawn = re.match(r"(?P<lead>[ │├└─]*)(?P<name>[A-Z]\w+)(?:\s{2,}|$)", line)
        if drawn is None:
            continue
        above = [(column, name) for column, name in above if column < len(drawn["lead"])]
        parents[drawn["name"]] = above[-1][1] if above else None
        above.append((len(drawn["lead"]), drawn["name"]))
    return parents


def actual_tree():
    """Parent by child, as the classes of errors.py are."""
    return {
        name: None if value.__base__ is Exception else value.__base__.__name__
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == errors.__name__
    }


def test_all_is_complete():
    """`__all__` names each public name once; the linter holds its order."""
    assert len(set(convlog_sqlite.__all__)) == len(convlog_sqlite.__all__)
    assert public_names() == {name for name in convlog_sqlite.__all__ if not name.startswith("_")}


@pytest.mark.parametrize("name", sorted(convlog_sqlite.__all__))
def test_a_public_name_is_there_and_explained(name):
    """Each public name can be imported, and a class or function has a docstring of its own."""
    value = getattr(importlib.import_module("convlog_sqlite"), name)
    if inspect.isclass(value) or inspect.isroutine(value):
        assert value.__doc__
        assert not value.__doc__.startswith(f"{name}("), "this is the signature that a dataclass makes up"


@pytest.mark.parametrize("name", sorted(convlog_sqlite.__all__))
def test_public_methods_are_explained(name):
    """Each public method and property says what it promises."""
    value = getattr(convlog_sqlite, name)
    if not inspect.isclass(value):
        return
    silent = [
        member
        for member, what in vars(value).items()
        if not member.startswith("_")
        and (inspect.isroutine(what) or isinstance(what, property | classmethod | staticmethod))
        and not inspect.getdoc(getattr(value, member))
    ]
    assert [] == silent


def test_the_tree_of_errors_is_as_drawn():
    """The tree in the docstring of errors.py is the tree of its classes."""
    assert drawn_tree(errors.__doc__) == actual_tree()


def test_every_error_is_public():
    """Whatever is raised on purpose can be caught by name."""
    assert actual_tree().keys() <= set(convlog_sqlite.__all__)


@pytest.mark.parametrize("name", sorted(convlog_sqlite.__all__))
def test_no_part_hides_what_another_part_does(name):
    """What a mixin only asks for is found in the class: the order of the parts hides no method."""
    value = getattr(convlog_sqlite, name)
    if not inspect.isclass(value):
        return
    asked_for = {
        member
        for member in dir(value)
        if getattr(inspect.getattr_static(value, member), "__isabstractmethod__", False)
    }
    assert asked_for == set()
