"""Interrupts and signal handlers at the worst moments: nothing hangs, nothing is doubled, and nobody is told a lie."""

import _thread
import functools
import os
import signal
import threading
import time

import pytest

from convlog_sqlite import ConversationLog, ConvlogError, Draft, StoreBusy, StoreIOError, locks
from convlog_sqlite.database import BEGIN_READ, BEGIN_WRITE, COMMIT
from convlog_sqlite.gate import WriterGate
from convlog_sqlite.locks import FileLock
from convlog_sqlite.store import committing

PATIENCE = 8.0  # longer than anything here takes, shorter than the ten seconds after which a lock gives up


@pytest.fixture(autouse=True)
def no_deadlock():
    """A test whose main thread hangs fails, instead of holding up all others."""

    def hangs(*_):
        raise AssertionError("a deadlock")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


class Interrupting:
    """A connection that calls `interrupt` once: before or behind the first statement that is `sql`."""

    def __init__(self, connection, sql, interrupt, *, behind=True):
        self._connection, self._sql, self._interrupt, self._behind = connection, sql, interrupt, behind

    def execute(self, sql, *parameters):
        meant = sql == self._sql and self._interrupt is not None
        if meant and not self._behind:
            self._fire()
        done = self._connection.execute(sql, *parameters)
        if meant and self._behind:
            self._fire()
        return done

    def _fire(self):
        interrupt, self._interrupt = self._interrupt, None
        interrupt()

    def __getattr__(self, name):
        return getattr(self._connection, name)


def interrupt():
    """What Ctrl-C does."""
    raise KeyboardInterrupt


def break_in(log, sql, call=interrupt, *, behind=True):
    """Let `call` come at the next statement `sql` of the connection that writes."""
    database = log._store.database
    database._writer = Interrupting(database._writer, sql, call, behind=behind)


def interrupt_commit(log):
    """Let Ctrl-C come in the middle of the next COMMIT: Python sees it when SQLite returns."""
    # No line of Python in the hook: it would be interrupted itself, and with it the commit.
    hook = functools.partial(any, map(_thread.interrupt_main, [signal.SIGINT]))
    log._store.database._writer.set_commit_hook(hook)


MOMENTS = {
    "at BEGIN": (lambda log: break_in(log, BEGIN_WRITE, behind=False), False),
    "when it has begun": (lambda log: break_in(log, BEGIN_WRITE), False),
    "before COMMIT": (lambda log: break_in(log, COMMIT, behind=False), False),
    "in the middle of COMMIT": (interrupt_commit, True),
    "behind COMMIT": (lambda log: break_in(log, COMMIT), True),
}


@pytest.fixture
def session(log):
    """A session that has one message, so that its handle has every connection that it needs."""
    opened = log.session("s")
    opened.message("first", agent="a")
    opened.tail(1)
    return opened


def bodies(session):
    """What was said, in order."""
    return [event.body for event in session.read(type="message")]


def works(log, *written):
    """Check that the handle and another one go on, and that exactly `written` stands there."""
    session = log.session("s")
    session.message("next", agent="a")
    with ConversationLog.open(log.path) as other:
        other.session("s").message("from elsewhere", agent="b")
        assert ["first", *written, "next", "from elsewhere"] == bodies(other.session("s")) == bodies(session)
        assert list(other.verify()) == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_append_is_whole_or_absent(log, session, moment):
    """Ctrl-C at any moment of an append reaches the caller, and the handle works on with the event once or not at all."""
    arrange, written = MOMENTS[moment]
    arrange(log)
    with pytest.raises(KeyboardInterrupt):
        session.message("interrupted", agent="a")
    works(log, *["interrupted"] * written)


def test_an_interrupted_append_can_be_repeated(log, session):
    """An append with an idempotency key that was interrupted behind its commit is repeated without being doubled."""
    break_in(log, COMMIT)
    with pytest.raises(KeyboardInterrupt):
        session.message("once", agent="a", idempotency_key="k")
    session.message("once", agent="a", idempotency_key="k")
    works(log, "once")


def test_an_interrupt_while_a_snapshot_begins_closes_it(log, session):
    """Ctrl-C when a read has just begun leaves no snapshot open, so that later reads see what is new."""
    database = log._store.database
    database._reader = Interrupting(database._reader, BEGIN_READ, interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.tail(1)
    assert not database._reader.in_transaction
    works(log)


def wait_until(condition):
    """Wait for other threads, and fail when they do not come."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("moment", [moment for moment in MOMENTS if moment != "in the middle of COMMIT"])
def test_those_who_wait_with_an_interrupted_leader_are_told_the_truth(log, session, moment):
    """Of a group whose leader is interrupted, every other append says that it was written exactly if it was."""
    arrange, written = MOMENTS[moment]
    writer, outcomes = log._store.writer, {}

    def append(number):
        try:
            outcomes[number] = session.message(f"{number}", agent="a").body
        except (KeyboardInterrupt, ConvlogError) as error:
            outcomes[number] = error

    threads = [threading.Thread(target=append, args=(number,), daemon=True) for number in range(4)]
    with writer._leading:
        for thread in threads:
            thread.start()
        wait_until(lambda: len(writer._waiting) == len(threads))
        arrange(log)
    for thread in threads:
        thread.join(PATIENCE / 2)
    assert not any(thread.is_alive() for thread in threads)
    interrupted = [said for said in outcomes.values() if isinstance(said, KeyboardInterrupt)]
    others = [(number, said) for number, said in outcomes.items() if not isinstance(said, KeyboardInterrupt)]
    assert (1, 3) == (len(interrupted), len(others))
    if written:
        assert all(said == f"{number}" for number, said in others)
        assert ["0", "1", "2", "3", "first"] == sorted(bodies(session))
    else:
        assert all(isinstance(said, StoreIOError) for _, said in others)
        works(log)


def test_an_append_that_was_interrupted_before_its_turn_is_never_written(log, session):
    """Ctrl-C while another thread leads takes the append back: no later one writes it."""
    writer, leads = log._store.writer, threading.Event()

    def lead():
        with writer._leading:
            leads.set()
            wait_until(lambda: writer._waiting)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            wait_until(lambda: not writer._waiting)

    leader = threading.Thread(target=lead)
    leader.start()
    leads.wait()
    with pytest.raises(KeyboardInterrupt):
        session.message("interrupted", agent="a")
    leader.join()
    works(log)


def test_a_leader_that_could_not_name_the_next_one_is_replaced(log, session, monkeypatch):
    """Ctrl-C just when a leader hands over leaves nobody waiting: those who wait notice, and one of them leads."""
    monkeypatch.setattr(committing, "_LEADER_SECONDS", 0.02)
    writer = log._store.writer
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_resign", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.message("0", agent="a")
    assert writer._leader is not None, "nobody was told"
    threads = [
        threading.Thread(target=session.message, args=(f"{number}",), kwargs={"agent": "a"}, daemon=True)
        for number in range(1, 9)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE / 2)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(bodies(session)) == [*(f"{number}" for number in range(9)), "first"]
    assert writer._leader is None


def test_a_leader_that_was_replaced_waits_like_the_others(log, session, monkeypatch):
    """A leader whose place another took while it was about to commit is committed by that one or by itself."""
    writer = log._store.writer
    monkeypatch.setattr(committing, "_LEADER_SECONDS", 0.02)
    commit, others = writer._commit, []

    def replaced(requests):
        monkeypatch.undo()
        monkeypatch.setattr(committing, "_LEADER_SECONDS", 0.02)
        writer._waiting.extendleft(reversed(requests))
        writer._leader = [*requests]  # somebody who does not come
        others.append(threading.Thread(target=session.message, args=("other",), kwargs={"agent": "a"}))
        others[0].start()
        wait_until(lambda: len(writer._waiting) == 1 + len(requests))

    monkeypatch.setattr(writer, "_commit", replaced)
    session.message("mine", agent="a")
    others[0].join(PATIENCE / 2)
    assert commit == writer._commit
    works(log, *[body for body in bodies(session) if body != "first"])
    assert {"mine", "other"} < {*bodies(session)}


@pytest.mark.parametrize("granted", [False, True])
def test_an_interrupt_while_waiting_for_a_lock_leaves_it_free(log, session, monkeypatch, granted):
    """Ctrl-C in the queue for the writer gate, before or just when it is granted, holds up nobody afterwards."""
    held = FileLock(log.path / "log.lock")
    held.acquire(1.0)

    class Wait:
        """The wait of a turn: interrupted, with the lock or without it."""

        def __init__(self, real):
            self._real = real

        def acquire(self, timeout):
            if granted:
                held.release()
                assert self._real.acquire(timeout=timeout)
            raise KeyboardInterrupt

        def __getattr__(self, name):
            return getattr(self._real, name)

    class Turn(locks._Turn):
        def __init__(self, operation):
            super().__init__(operation)
            self.granted = Wait(self.granted)

    with monkeypatch.context() as patch:
        patch.setattr(locks, "_Turn", Turn)
        with pytest.raises(KeyboardInterrupt):
            session.message("interrupted", agent="a")
    if not granted:
        held.release()
    held.close()
    works(log)


@pytest.mark.parametrize("part", ["_turnstile", "_gate"])
def test_an_interrupt_while_a_lock_is_given_back_leaves_the_gate_free(tmp_path, monkeypatch, part):
    """Ctrl-C just behind the release of the turnstile or the gate leaves neither of them held."""
    gate, other = WriterGate(tmp_path / "gate"), WriterGate(tmp_path / "gate")
    release = getattr(gate, part).release

    def interrupted():
        release()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(getattr(gate, part), "release", interrupted)
        with pytest.raises(KeyboardInterrupt), gate.held(1.0):
            pass
    with other.held(0.2):
        pass
    with gate.held(0.2):
        pass
    gate.close()
    other.close()


def test_an_interrupt_when_the_keystore_is_locked_unlocks_it(log, session, monkeypatch):
    """Ctrl-C when the keystore has just been locked for a lease lets other handles take their keys."""
    keystore = log._store.keystore
    keystore._leased.clear()
    lock = keystore._file.lock

    def interrupted():
        lock()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(keystore._file, "lock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.message("interrupted", agent="a")
    monkeypatch.setattr("convlog_sqlite.slotfile._LOCK_SECONDS", 0.2)
    works(log)


def test_a_keystore_that_somebody_holds_is_not_waited_for_without_end(log, session, monkeypatch):
    """An append that needs keys while another process holds the keystore ends with StoreBusy."""
    monkeypatch.setattr("convlog_sqlite.slotfile._LOCK_SECONDS", 0.05)
    log._store.keystore._leased.clear()
    holder = FileLock(log.path / "log.keys")
    assert holder.try_acquire()
    with pytest.raises(StoreBusy):
        session.message("busy", agent="a")
    holder.close()
    works(log)


@pytest.fixture
def handled(session):
    """What the handler of SIGUSR1 got: it tries to append, and it reads."""
    got = []

    def handle(*_):
        try:
            got.append(session.message("from the handler", agent="h"))
        except StoreBusy as busy:
            got.append(busy)
        got.append([event.body for event in session.tail(5, type="message")])

    before = signal.signal(signal.SIGUSR1, handle)
    yield got
    signal.signal(signal.SIGUSR1, before)


def send():
    """Let the handler run, here and now."""
    os.kill(os.getpid(), signal.SIGUSR1)


@pytest.mark.parametrize(
    ("sql", "behind"), [(BEGIN_WRITE, False), (BEGIN_WRITE, True), (COMMIT, False), (COMMIT, True)]
)
def test_a_handler_in_the_middle_of_an_append_reads_and_is_told_that_it_cannot_append(
    log, session, handled, sql, behind
):
    """A signal handler that comes during an append of its thread gets StoreBusy for an append and answers for a read."""
    break_in(log, sql, send, behind=behind)
    session.message("second", agent="a")
    busy, seen = handled
    assert isinstance(busy, StoreBusy)
    assert seen == ["first", "second"][: 1 + (sql == COMMIT and behind)]
    works(log, "second")


def test_a_handler_in_the_middle_of_an_import_is_told_that_it_cannot_append(log, session, handled):
    """A signal handler that comes while imported events are committed gets StoreBusy, and does not wait for itself."""
    break_in(log, COMMIT, send, behind=False)
    draft = Draft(type="message", agent="a", body="second")
    assert 1 == log.append_foreign("s", [(log.foreign_id("claude-code", "1"), draft)])
    assert isinstance(handled[0], StoreBusy)
    works(log, "second")


def test_a_handler_while_keys_are_taken_is_told_that_it_cannot_append(log, session, handled, monkeypatch):
    """A signal handler that comes while an append takes keys gets StoreBusy, and does not wait for itself."""
    keystore = log._store.keystore
    keystore._leased.clear()
    sync = keystore._file.sync
    monkeypatch.setattr(keystore._file, "sync", lambda: (send(), sync()))
    session.message("second", agent="a")
    assert isinstance(handled[0], StoreBusy)
    works(log, "second")


def test_a_handler_in_the_middle_of_a_read_reads_and_appends(log, session, handled):
    """A signal handler that comes during a read of its thread may append and read; the read goes on in its snapshot."""
    database = log._store.database
    database._reader = Interrupting(database._reader, BEGIN_READ, send)
    session.tail(5)
    event, seen = handled
    assert event.body == "from the handler"
    assert seen[0] == "first"
    works(log, "from the handler")


def test_a_handler_may_append_when_nothing_else_is_appended(log, session, handled):
    """A signal handler that comes between appends writes like everybody else."""
    send()
    assert handled[1] == ["first", "from the handler"]
    works(log, "from the handler")
