import mlx.core as mx
import pytest
from tiny_models import CONFIGS, VOCAB, tiny_model

from engine_core.forward_memory import MEASURED_TOKENS, forward_bytes


def test_activations_and_logits_are_counted() -> None:
    model = tiny_model("llama", intermediate_size=4096)
    measured = forward_bytes(model, VOCAB, MEASURED_TOKENS, 0)
    widest = MEASURED_TOKENS * 4096 * 4
    assert widest <= measured < 8 * widest, "the MLP's activations are the largest"
    assert forward_bytes(model, VOCAB, 4 * MEASURED_TOKENS, 0) == pytest.approx(4 * measured, rel=0.2)
    with_rows = forward_bytes(model, VOCAB, MEASURED_TOKENS, 1000)
    assert with_rows - measured == pytest.approx(4 * 4 * 1000 * VOCAB, rel=0.1)


@pytest.mark.parametrize("model_type", list(CONFIGS))
def test_nothing_is_kept_of_the_measurement(model_type: str) -> None:
    model = tiny_model(model_type)
    active = mx.get_active_memory()
    assert forward_bytes(model, VOCAB, 128, 8) > 0
    assert mx.get_active_memory() - active < 1000, "but for constants of the model"
