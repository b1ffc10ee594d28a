"""Settings: which source counts, what is refused and how, and the store that an address names."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass import dialects
from windlass.clock import ManualClock
from windlass.config import PASSED_DOWN, load, lookup
from windlass.config.addresses import located, shown
from windlass.config.opening import migrate_store, open_store
from windlass.config.settings import DEFAULTS, SETTINGS, SLOTS, Settings
from windlass.durations import duration, spelled
from windlass.engine import Engine
from windlass.errors import BadInput, StoreError, StoreUnreachable
from windlass.store.base import run_sync


def _write(folder: Path, text: str) -> Path:
    (folder / "windlass.toml").write_text(text, encoding="utf-8")
    return folder / "windlass.toml"


def _refused(folder: Path, environment: dict[str, str] | None = None, **overrides: Any) -> BadInput:
    with pytest.raises(BadInput) as caught:
        load(overrides, environment=environment or {}, folder=str(folder))
    return caught.value


# Which source counts


def test_what_nobody_said_is_none_and_a_default_only_when_asked_for(tmp_path: Path) -> None:
    said = load(environment={}, folder=str(tmp_path))
    assert said == Settings()
    assert said.filled() == DEFAULTS
    assert load({"slots": SLOTS}, environment={}, folder=str(tmp_path)) == Settings(slots=SLOTS)  # said, though it is the default


def test_arguments_come_before_variables_before_the_file(tmp_path: Path) -> None:
    path = _write(tmp_path, 'slots = 2\nname = "file"\nqueues = ["a", "b"]\nlease = "1m"')
    environment = {"WINDLASS_SLOTS": "3", "WINDLASS_NAME": "variable", "HOME": "/"}
    found = lookup({"slots": 4, "name": None}, environment=environment, folder=str(tmp_path))
    assert {name: said.value for name, said in found.items()} == {"slots": 4, "name": "variable", "queues": ("a", "b"), "lease": 60_000}
    assert found["slots"].source == "the argument slots"
    assert found["name"].source == "WINDLASS_NAME"
    assert found["queues"].source == f"{path}: queues"


def test_an_empty_variable_is_not_said(tmp_path: Path) -> None:
    _write(tmp_path, "slots = 2")
    assert load(environment={"WINDLASS_SLOTS": ""}, folder=str(tmp_path)).slots == 2


def test_the_nearest_file_above_counts_alone(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    _write(tmp_path, "slots = 2\ncores = 8")
    assert load(environment={}, folder=str(below)).slots == 2
    _write(tmp_path / "a", "slots = 3")
    assert load(environment={}, folder=str(below)) == Settings(slots=3)


def test_a_variable_names_another_file(tmp_path: Path) -> None:
    _write(tmp_path, "slots = 2")
    (tmp_path / "other.toml").write_text("slots = 5", encoding="utf-8")
    assert load(environment={"WINDLASS_CONFIG": "other.toml"}, folder=str(tmp_path)).slots == 5
    error = _refused(tmp_path, {"WINDLASS_CONFIG": "none.toml"})
    assert "WINDLASS_CONFIG" in error.message
    assert "none.toml" in error.message


@pytest.mark.parametrize("address", ["shop.db", "sqlite:///shop.db"])
def test_a_path_in_the_file_is_meant_from_the_files_folder(tmp_path: Path, address: str) -> None:
    below = tmp_path / "below"
    below.mkdir()
    _write(tmp_path, f'store = "{address}"')
    assert load(environment={}, folder=str(below)).store == str(tmp_path / "shop.db")


@pytest.mark.parametrize("address", [":memory:", "postgresql://u@h/d", "/var/shop.db"])
def test_what_is_no_relative_path_stays_as_it_is(tmp_path: Path, address: str) -> None:
    _write(tmp_path, f'store = "{address}"')
    assert load(environment={}, folder=str(tmp_path)).store == address


def test_every_setting_can_be_said_in_every_place(tmp_path: Path) -> None:
    lines = {
        "store": '"/shop.db"', "app": '"shop:app"', "name": '"w"', "queues": '["a"]', "jobs": '["a"]', "tags": '["a"]', "slots": "2",
        "lease": "60", "grace": '"1m"', "cores": "3", "memory": '"2GiB"', "log_level": '"debug"', "log_format": '"json"',
        "host": '"::1"', "port": "81", "connections": "9", "allow": '["10.0.0.0/8"]', "plain_http": "true", "notify": '["a"]',
        "hub": '"https://hub"', "hub_token": '"wl_x"', "hub_ca": '"/ca.pem"', "spool": '"/spool"',
        "solvers": "true", "solver_hosts": '["a"]', "solver_allow": '["10.0.0.0/8"]', "solver_plain_http": "true", "solver_cache": '"/c"',
        "solver_unchecked": "true",
        "solver_memory": '"1GiB"', "pooled": "true", "listen_store": '"postgresql://h/d"', "pool_size": "5",
        "solver_processes": "100", "solver_file_size": '"1GiB"', "keep_succeeded": '"1h"', "keep_others": '"forever"',
        "dialects": '{forge = {secret = "s"}}', "dialect": '["forge"]',
    }  # fmt: skip
    texts = {
        "store": "/shop.db", "app": "shop:app", "name": "w", "queues": "a", "jobs": "a,", "tags": " a ", "slots": "2",
        "lease": "60", "grace": "1m", "cores": "3", "memory": "2048", "log_level": "debug", "log_format": "json",
        "host": "::1", "port": "81", "connections": "9", "allow": "10.0.0.0/8", "plain_http": "1", "notify": "a",
        "hub": "https://hub", "hub_token": "wl_x", "hub_ca": "/ca.pem", "spool": "/spool",
        "solvers": "1", "solver_hosts": "a", "solver_allow": "10.0.0.0/8", "solver_plain_http": "true", "solver_cache": "/c",
        "solver_unchecked": "true",
        "solver_memory": "1024", "pooled": "1", "listen_store": "postgresql://h/d", "pool_size": "5",
        "solver_processes": "100", "solver_file_size": "1024", "keep_succeeded": "3600", "keep_others": "forever",
        "dialects": '{"forge": {"secret": "s"}}', "dialect": "forge",
    }  # fmt: skip
    assert lines.keys() == texts.keys() == SETTINGS.keys() == set(Settings.__struct_fields__)
    _write(tmp_path, "\n".join(f"{name} = {value}" for name, value in lines.items()))
    from_file = load(environment={}, folder=str(tmp_path))
    assert None not in [getattr(from_file, name) for name in SETTINGS]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "windlass.toml").touch()
    variables = {f"WINDLASS_{name.upper()}": text for name, text in texts.items()}
    assert load(environment=variables, folder=str(tmp_path / "empty")) == from_file
    assert from_file.lease == from_file.grace == 60_000
    assert from_file.memory == 2048


# What is refused


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("slots = 0", "from 1"),
        ('slots = "2"', "whole number"),
        ("slots = true", "whole number"),
        ("slots = 2.0", "whole number"),
        ('queues = "mail"', "a list of names"),
        ("queues = []", "a list of names"),
        ("queues = [1]", "printable"),
        ('lease = "soon"', "duration"),
        ("lease = 0", "from 1ms to 1d"),
        ("lease = -1", "duration"),
        ("lease = true", "duration"),
        ("lease = inf", "duration"),
        ("grace = nan", "duration"),
        ('grace = "99999999d"', "ten years"),
        ('log_level = "loud"', "debug, info"),
        ("log_level = []", "debug, info"),
        ('log_format = "xml"', "text, json"),
        ('memory = "much"', "MiB"),
        ('name = "a\\nb"', "printable"),
        ("store = 1", "a text"),
        ("dialects = 1", "tables, such as"),
        ("dialects = {forge = 1}", "tables, such as"),
        ('store = ""', "a text"),
    ],
)
def test_a_bad_value_names_the_file_and_the_key(tmp_path: Path, line: str, wanted: str) -> None:
    path = _write(tmp_path, line)
    error = _refused(tmp_path)
    assert f"{path}: {line.partition(' ')[0]}" in error.message
    assert wanted in error.message
    assert str(path) in error.hint


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("WINDLASS_SLOTS", "many"),
        ("WINDLASS_LEASE", "5 parsecs"),
        ("WINDLASS_QUEUES", ","),
        ("WINDLASS_CORES", "-1"),
        ("WINDLASS_DIALECTS", "forge"),
    ],
)
def test_a_bad_value_names_the_variable(tmp_path: Path, variable: str, text: str) -> None:
    error = _refused(tmp_path, {variable: text})
    assert error.message.startswith(f"{variable} is ")
    assert variable in error.hint


def test_a_bad_argument_is_named(tmp_path: Path) -> None:
    assert "the argument slots is 0" in _refused(tmp_path, slots=0).message
    assert "slots" in _refused(tmp_path, slot=1).hint


def test_unknown_names_are_refused_with_the_nearest(tmp_path: Path) -> None:
    assert _refused(tmp_path, {"WINDLASS_SLOT": "3"}).hint == "Did you mean WINDLASS_SLOTS?"
    assert "WINDLASS_STORE" in _refused(tmp_path, {"WINDLASS_XYZZY": "3"}).hint
    path = _write(tmp_path, "slot = 3")
    error = _refused(tmp_path)
    assert str(path) in error.message
    assert error.hint == "Did you mean slots?"


def test_variables_of_other_uses_are_known(tmp_path: Path) -> None:
    environment = {"WINDLASS_FAULTS": "x", "WINDLASS_DEBUG": "1", "WINDLASS_CONFIG": "", "SLOTS": "?"}
    environment |= dict.fromkeys(PASSED_DOWN, "x")
    assert load(environment=environment, folder=str(tmp_path)) == Settings()


@pytest.mark.parametrize("content", [b"slots = ", b"\xff\xfe", b"slots = 1\nslots = 2"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "windlass.toml").write_bytes(content)
    assert str(tmp_path / "windlass.toml") in _refused(tmp_path).message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    _write(tmp_path, "slots = 1").chmod(0)
    assert "Cannot read" in _refused(tmp_path).message


def test_an_error_about_a_store_shows_no_password(tmp_path: Path) -> None:
    error = _refused(tmp_path, {"WINDLASS_STORE": "postgresql://u:secret@h/d\0"})
    assert "secret" not in str(error)


# Durations


@pytest.mark.parametrize(
    ("value", "ms"),
    [(45, 45_000), (0.5, 500), ("30", 30_000), ("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("1d", 86_400_000),
     ("1h30m", 5_400_000), ("1.5s", 1_500), (" 2s ", 2_000), (0, 0)],
)  # fmt: skip
def test_durations_are_seconds_or_texts(value: Any, ms: int) -> None:
    assert duration(value) == ms


@pytest.mark.parametrize("value", ["", "s", "5x", "-5s", "5 s", "1e3s", "٣s", None, True, [], float("nan"), float("inf"), -1])
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="duration"):
        duration(value)


@pytest.mark.parametrize("ms", [0, 1, 500, 1_000, 1_500, 60_000, 90_000, 3_600_000, 86_400_000, 30 * 86_400_000])
def test_a_spelled_duration_reads_back(ms: int) -> None:
    assert duration(spelled(ms)) == ms


# Addresses and stores


@pytest.mark.parametrize(
    ("address", "kind", "place"),
    [
        ("shop.db", "sqlite", "shop.db"),
        ("sqlite:///shop.db", "sqlite", "shop.db"),
        ("sqlite:////var/shop.db", "sqlite", "/var/shop.db"),
        ("sqlite://", "sqlite", ":memory:"),
        ("sqlite:///:memory:", "sqlite", ":memory:"),
        (":memory:", "sqlite", ":memory:"),
        ("postgresql://u@h/d", "postgres", "postgresql://u@h/d"),
        ("postgres://u@h/d", "postgres", "postgres://u@h/d"),
    ],
)
def test_an_address_names_a_store(address: str, kind: str, place: str) -> None:
    assert located(address) == (kind, place)


def test_an_unknown_kind_of_store_is_refused() -> None:
    with pytest.raises(BadInput, match="mysql"):
        located("mysql://u:secret@h/d")


@pytest.mark.parametrize(
    ("address", "safe"),
    [
        ("shop.db", "shop.db"),
        ("postgresql://ann@db/shop", "postgresql://ann@db/shop"),
        ("postgresql://db/shop", "postgresql://db/shop"),
        ("postgresql://ann:secret@db:5432/shop?sslmode=require", "postgresql://ann:***@db:5432/shop?sslmode=require"),
        ("postgresql://ann:s@cr/et?x@db/shop", "postgresql://ann:***@db/shop"),
        ("postgresql://ann@db/shop?password=secret&sslmode=off", "postgresql://ann@db/shop?password=***&sslmode=off"),
        ("postgresql://db/shop?%70assword=secret", "postgresql://db/shop?%70assword=***"),
        ("postgresql://db/shop?sslPassword=secret", "postgresql://db/shop?sslPassword=***"),
        ("postgresql://db/shop?password=sec@ret", "postgresql://db/shop?password=***"),
        ("postgresql:///shop?host=/run&user=ann", "postgresql:///shop?host=/run&user=ann"),
        (
            "postgresql://db/shop?pooled=true&listen_store=postgresql%3A%2F%2Fu%3Asecret%40h%2Fd",
            "postgresql://db/shop?pooled=true&listen_store=***",
        ),
        ("postgresql://db/shop?listen_store=postgresql://u:secret@h/d", "postgresql://db/shop?listen_store=***"),
    ],
)
def test_an_address_is_shown_without_its_password(address: str, safe: str) -> None:
    assert shown(address) == safe


def test_a_missing_file_is_made_only_where_that_is_meant(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with pytest.raises(StoreUnreachable, match="windlass migrate"):
        open_store(str(path), ManualClock(), blocking=True, create=False)
    assert not path.exists()
    run_sync(open_store(f"sqlite:///{path}", ManualClock(), blocking=True).close())
    assert path.exists()
    run_sync(open_store(str(path), ManualClock(), blocking=True, create=False).close())


def test_a_store_for_an_event_loop(tmp_path: Path) -> None:
    import asyncio

    async def use() -> None:
        store = open_store(str(tmp_path / "shop.db"), clock := ManualClock(), blocking=False)
        await Engine(store, clock).define("mail")
        await store.close()

    asyncio.run(use())


def test_a_store_on_postgresql(postgres_url: str) -> None:
    clock = ManualClock()
    assert migrate_store(postgres_url, clock)[0] == 0
    store = open_store(postgres_url, clock, blocking=True)
    run_sync(Engine(store, clock).define("mail"))
    run_sync(store.close())


@pytest.mark.parametrize(
    ("parameters", "settings", "pooled", "size", "listens"),
    [
        ("", Settings(), False, 10, True),
        ("", Settings(pooled=True, pool_size=3), True, 3, False),
        ("&pooled=true&pool_size=2", Settings(), True, 2, False),
        ("&pool_size=2&pooled=0", Settings(pooled=True, pool_size=3), False, 2, True),
        ("&pooled=1&listen_store=postgresql%3A%2F%2Fu%40h%2Fd", Settings(), True, 10, True),
        ("&pooled=true", Settings(listen_store="postgresql://u@h/d"), True, 10, True),
    ],
)
def test_what_an_address_says_of_its_use_comes_before_the_settings(
    postgres_url: str, parameters: str, settings: Settings, pooled: bool, size: int, listens: bool
) -> None:
    store: Any = open_store(postgres_url + parameters, ManualClock(), blocking=True, settings=settings)
    assert (store._pooled, store._size, store._listening is not None) == (pooled, size, listens)
    run_sync(store.close())
    assert migrate_store(postgres_url + parameters, ManualClock(), settings=settings)[0] > 0


@pytest.mark.parametrize(
    ("parameter", "wanted"),
    [("pooled=maybe", "true or false"), ("pooled", "true or false"), ("pool_size=0", "from 1 to 1,000"),
     ("pool_size=1001", "from 1 to 1,000"), ("pool_size=-1", "from 1 to 1,000"), ("pool_size=ten", "a whole number"),
     ("listen_store=", "a text")],
)  # fmt: skip
def test_a_bad_value_in_an_address_is_named(parameter: str, wanted: str) -> None:
    with pytest.raises(BadInput, match=wanted) as caught:
        open_store(f"postgresql://ann:s?cret@db/shop?{parameter}", ManualClock(), blocking=True)
    assert f"{parameter.partition('=')[0]} in the store's address" in caught.value.message
    assert "cret" not in str(caught.value)


def test_an_address_to_listen_at_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(BadInput, match="listen") as caught:
        open_store("postgresql://db/shop", ManualClock(), blocking=True, settings=Settings(listen_store="postgresql://u:sec%ret@h/d"))
    assert "sec" not in str(caught.value)


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("windlass.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("windlass.store.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError) as caught:
        open_store("postgresql://u@h/d", ManualClock(), blocking=True)
    assert "[postgres]" in caught.value.hint


def test_an_agent_of_a_dialect_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    needing_httpx = ("windlass.client", "windlass.dialects.forge.agent", "windlass.dialects.forge.port")
    for name in [name for name in sys.modules if name.startswith(needing_httpx)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("windlass.client", raising=False)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(StoreError) as caught:
        dialects.agent_of("forge")
    assert "[remote]" in caught.value.hint
