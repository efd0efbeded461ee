"""Messages do not change unseen."""

from messages import FILE, messages


def test_messages_are_those_that_were_read():
    before, now = FILE.read_text(encoding="utf-8").splitlines(), messages().splitlines()
    changed = [f"- {text}" for text in before if text not in now] + [
        f"+ {text}" for text in now if text not in before
    ]
    assert not changed, "read these, then run python tests/messages.py:\n" + "\n".join(changed)
