"""The constraint of a request: its limits, and its way to the compiler."""

from control_plane.edge.service.errors import FailedPrecondition, InvalidArgument, Unavailable
from control_plane.edge.text.constraint.compiler import ConstraintCompiler, ConstraintsUnavailable
from control_plane.edge.text.constraint.grammar import (
    GrammarRefused,
    alternatives_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from control_plane.edge.text.constraint.grammar_trial import TrialFailed
from control_plane.edge.text.constraint.token_constraint import TokenConstraint
from pypto_serving.inference.v1 import inference_pb2

_MAX_BYTES = 1 << 16
_MAX_ALTERNATIVES = 1024
_MAX_ALTERNATIVE_BYTES = 1024

_GRAMMARS = {"json_schema": json_schema_grammar, "regex": regex_grammar, "grammar": lark_grammar}


def check_constraint(constraint: inference_pb2.Constraint) -> None:
    """Check sizes, before anything looks inside; raises InvalidArgument."""
    kind = constraint.WhichOneof("kind")
    if kind is None:
        raise InvalidArgument("constraint.kind is absent, must be one of json_schema, regex, alternatives and grammar")
    if kind == "alternatives":
        _check_alternatives(constraint.alternatives)
    else:
        _check_size(f"constraint.{kind}", len(getattr(constraint, kind).encode()), _MAX_BYTES)


class RequestConstraints:
    """Makes the constraints of requests. Its methods may be called on any thread, and block."""

    def __init__(self, compiler: ConstraintCompiler) -> None:
        self._compiler = compiler

    def prepare(self) -> None:
        """Build what all constraints share: until then the first one waits for it."""
        self._compiler.prepare()

    def compile(self, constraint: inference_pb2.Constraint, count: int) -> tuple[str, list[TokenConstraint]]:
        """The grammar of a checked constraint, and a constraint by it for each of `count` sequences; raises a RequestError."""
        kind = constraint.WhichOneof("kind")
        assert kind is not None
        try:
            is_list = kind == "alternatives"
            grammar = alternatives_grammar(constraint.alternatives.texts) if is_list else _GRAMMARS[kind](getattr(constraint, kind))
            return grammar, self._compiler.compile(grammar, count)
        except GrammarRefused as error:
            raise InvalidArgument(f"constraint.{kind}: {error}") from None
        except ConstraintsUnavailable as error:
            raise FailedPrecondition(f"constraint: {error}") from None
        except TrialFailed as error:
            raise Unavailable(f"constraint: the server is too busy to compile it: {error}") from None


def _check_alternatives(alternatives: inference_pb2.Alternatives) -> None:
    count = len(alternatives.texts)
    if not 1 <= count <= _MAX_ALTERNATIVES:
        raise InvalidArgument(f"constraint.alternatives.texts has {count} entries, must have from 1 to {_MAX_ALTERNATIVES}")
    sizes = [len(text.encode()) for text in alternatives.texts]
    for index, size in enumerate(sizes):
        _check_size(f"constraint.alternatives.texts[{index}]", size, _MAX_ALTERNATIVE_BYTES)
    _check_size("constraint.alternatives.texts, together,", sum(sizes), _MAX_BYTES)


def _check_size(field: str, num_bytes: int, limit: int) -> None:
    if not 1 <= num_bytes <= limit:
        raise InvalidArgument(f"{field} has {num_bytes} bytes, must have from 1 to {limit}")
