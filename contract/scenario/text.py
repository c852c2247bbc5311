"""The text of a scenario file as plain objects: JSON or YAML, every key once, without any of YAML's surprises.

Numbers that are no numbers (NaN), too large, or too long to be read become values that `contract.scenario.values`
refuses with the field they stand in.
"""

import json
from typing import Any

import yaml

from contract.errors import ScenarioError
from contract.files import MIB
from contract.foreign_text import presentable
from contract.scenario.problems import UnreadNumber

LONGEST_NUMBER = 400
"""Characters: more than any number of 64 bits takes. Reading a number takes time with the square of its length."""
LARGEST_EXPANSION = 64 * MIB
NODE_BYTES = 16
"""What a node counts beside its text when an expansion is added up."""


def parse_json(text: str, source: str) -> Any:
    """Raises ScenarioError with line and column."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document: dict[str, Any] = {}
        for key, value in pairs:
            if key in document:
                raise ScenarioError(f"{source}: the key {key!r} stands twice in one object; remove one")
            document[key] = value
        return document

    try:
        return json.loads(text, object_pairs_hook=unique, parse_int=_json_integer)
    except json.JSONDecodeError as error:
        raise ScenarioError(f"{source}:{error.lineno}:{error.colno}: not JSON ({error.msg})") from error
    except RecursionError as error:
        raise ScenarioError(f"{source}: nested too deeply") from error


def _json_integer(text: str) -> int | UnreadNumber:
    return int(text) if len(text) <= LONGEST_NUMBER else UnreadNumber(text)


class _StrictLoader(yaml.CSafeLoader):
    """YAML without tags, dates as texts, and duplicate keys refused."""


_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _unique_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    document: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} is not a text; quote it", key_node.start_mark
            )
        if key in document:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} stands twice in one mapping; remove one", key_node.start_mark
            )
        document[key] = loader.construct_object(value_node, deep=True)
    return document


def _yaml_number(read: Any) -> Any:
    def number(loader: _StrictLoader, node: yaml.ScalarNode) -> Any:
        if len(node.value) > LONGEST_NUMBER:
            return UnreadNumber(node.value)
        return read(loader, node)

    return number


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _unique_mapping)
_StrictLoader.add_constructor("tag:yaml.org,2002:int", _yaml_number(yaml.SafeLoader.construct_yaml_int))
_StrictLoader.add_constructor("tag:yaml.org,2002:float", _yaml_number(yaml.SafeLoader.construct_yaml_float))


def parse_yaml(text: str, source: str) -> Any:
    """Raises ScenarioError with line and column, and when the aliases in `text` stand for too much."""
    loader = _StrictLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded_bytes(node) > LARGEST_EXPANSION:
            raise ScenarioError(
                f"{source}: its aliases (*name) stand for more than {LARGEST_EXPANSION // MIB} MiB; write out what "
                "is needed"
            )
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ScenarioError(f"{source}{place}: not YAML ({error.problem})") from error
    except (yaml.YAMLError, RecursionError, ArithmeticError, ValueError) as error:
        raise ScenarioError(f"{source}: not YAML ({presentable(str(error))})") from error
    finally:
        loader.dispose()


def _expanded_bytes(root: yaml.Node) -> int:
    """What the document takes when every alias is written out, each node counted once. Raises for a loop of aliases."""
    sizes: dict[yaml.Node, int | None] = {}

    def size(node: yaml.Node) -> int:
        if node in sizes:
            known = sizes[node]
            if known is None:
                raise yaml.constructor.ConstructorError(
                    None, None, "an alias stands inside of what it names", node.start_mark
                )
            return known
        sizes[node] = None
        own = NODE_BYTES
        if isinstance(node, yaml.ScalarNode):
            own += len(node.value.encode("utf-8", "surrogatepass"))
        elif isinstance(node, yaml.MappingNode):
            own += sum(size(key) + size(value) for key, value in node.value)
        else:
            own += sum(size(item) for item in node.value)
        sizes[node] = own
        return own

    return size(root)
