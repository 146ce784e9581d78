"""What a value of an option must be, in the words of whoever gives it, from the option's declared type."""

from msgspec import inspect


def choices_of(declared: object) -> tuple[str, ...]:
    """The values of a closed set; none for every other type."""
    described = _plain(inspect.type_info(declared))
    if isinstance(described, inspect.BoolType):
        return ("true", "false")
    return tuple(str(value) for value in described.values) if isinstance(described, inspect.LiteralType) else ()


def wanted(declared: object) -> str:
    """For example `a whole number from 0 to 65535`, `a number above 0`, `one of json, text`."""
    return _words(_plain(inspect.type_info(declared)))


def _plain(described: inspect.Type) -> inspect.Type:
    """Without descriptions, and without None: an option that may be left out is not given as None."""
    while isinstance(described, inspect.Metadata):
        described = described.type
    if isinstance(described, inspect.UnionType):
        return _plain(next(part for part in described.types if not isinstance(part, inspect.NoneType)))
    return described


def _words(described: inspect.Type) -> str:
    match described:
        case inspect.IntType():
            return "a whole number" + _limits(described)
        case inspect.FloatType():
            return "a number" + _limits(described)
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(str(value) for value in values)
        case inspect.VarTupleType(item_type=item):
            return f"a list, each {_words(_plain(item))}"
        case inspect.BoolType():
            return "true or false"
        case _:
            return "text"


def _limits(described: inspect.IntType | inspect.FloatType) -> str:
    least, most = described.ge, described.le
    if least is not None and most is not None:
        return f" from {least:.15g} to {most:.15g}"
    words = ""
    if least is not None:
        words += f" of at least {least:.15g}"
    if described.gt is not None:
        words += f" above {described.gt:.15g}"
    if most is not None:
        words += f" of at most {most:.15g}"
    return words
