"""The Hugging Face Hub, within reach and out of it."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from interbasis import InterbasisError, from_hf
from interbasis.base.connection import hub_is_out_of_reach

pytest.importorskip("transformers")

from tiny_models import random_model, tokens


@pytest.fixture
def closed_port() -> Iterator[str]:
    """An address of this machine where nobody answers."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_hub_id_without_a_network_is_refused_at_once_or_read_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: str
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", closed_port)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with monkeypatch.context() as patched:  # the Hub's own clients would try for half a minute
        patched.setattr("transformers.AutoConfig.from_pretrained", lambda *_, **__: pytest.fail("was asked"))
        with pytest.raises(InterbasisError, match=r"out of reach.*network connection") as caught:
            from_hf("no-one/tiny")
    assert "\n" not in str(caught.value)
    model = random_model("llama", torch.float32)
    repository = tmp_path / "models--no-one--tiny"
    model.save_pretrained(repository / "snapshots" / "0123")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123")
    for stored in (False, True):
        network = from_hf("no-one/tiny", stored=stored)
        assert (network(tokens()) - model(tokens()).logits).abs().max() <= 1e-4


def test_the_hub_is_within_reach_where_something_answers(
    monkeypatch: pytest.MonkeyPatch, closed_port: str
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        open_port = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", open_port)
        assert not hub_is_out_of_reach()
        monkeypatch.setenv("http_proxy", closed_port)
        monkeypatch.delenv("no_proxy", raising=False)
        assert hub_is_out_of_reach()  # a proxy that does not answer
        monkeypatch.setattr(constants, "ENDPOINT", closed_port)
        monkeypatch.setenv("http_proxy", open_port)
        assert not hub_is_out_of_reach()  # a proxy that does
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert hub_is_out_of_reach()
