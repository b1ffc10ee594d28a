"""A hub inside somebody else's application, under a path of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.served import ServedHub
from windlass.clock import SystemClock
from windlass.engine import Engine
from windlass.hub import Hub, HubApp, HubSettings
from windlass.store.sqlite import AsyncSqlite

Application = Callable[[Any, Any, Any], Awaitable[None]]


def in_starlette(hub: HubApp) -> Application:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    return Starlette(routes=[Mount("/ops/jobs", app=hub)])


def in_fastapi(hub: HubApp) -> Application:
    from fastapi import FastAPI

    app = FastAPI()
    app.mount("/ops/jobs", hub)
    return app


def in_litestar(hub: HubApp) -> Application:
    from litestar import Litestar, asgi

    @asgi("/ops/jobs", is_mount=True, copy_scope=True)
    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await hub(scope, receive, send)

    return Litestar([mounted], openapi_config=None)


def in_django(hub: HubApp) -> Application:
    """As Django's own asgi.py would: what is below a path goes to the hub, the rest to Django."""
    from django.conf import settings  # type: ignore[import-untyped]
    from django.core.asgi import get_asgi_application  # type: ignore[import-untyped]

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="test")
    django = get_asgi_application()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/ops/jobs/"):
            await hub({**scope, "root_path": "/ops/jobs"}, receive, send)
        else:
            await django(scope, receive, send)

    return application


urlpatterns: list[Any] = []


@asynccontextmanager
async def mounted(file: Path, mount: Callable[[HubApp], Application], settings: HubSettings | None = None) -> Any:
    clock = SystemClock()
    store = AsyncSqlite(file, clock)
    hub = Hub(Engine(store, clock), clock, settings)
    transport = httpx.ASGITransport(app=mount(HubApp(hub)))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/ops/jobs/", timeout=60) as http:
            yield http
    finally:
        await hub.stop()
        await store.close()


@pytest.mark.parametrize("mount", [in_starlette, in_fastapi, in_litestar, in_django])
def test_a_mounted_hub_serves_its_page_its_api_and_its_loops(tmp_path: Path, mount: Callable[[HubApp], Application]) -> None:
    async def go() -> None:
        async with mounted(tmp_path / "hub.db", mount, HubSettings(open=True)) as http:
            page = await http.get("")
            assert page.status_code == 200, page.text
            assert "text/html" in page.headers["content-type"]
            assert 'href="/' not in page.text
            assert 'src="/' not in page.text
            assert (await http.put("api/v1/jobs/a%2Fb", json={})).json()["name"] == "a/b"
            made = await http.post("api/v1/runs", json={"job": "a/b", "delay": 200})
            assert made.status_code == 202, made.text
            run = made.json()["id"]
            assert (await http.post("api/v1/worker/wait", json={"topics": ["queue:default"], "timeout": 0})).status_code == 200
            asked = {"worker": {"name": "w"}, "count": 1, "lease": 60_000, "wait": 30_000}
            claimed = await http.post("api/v1/worker/claim", json=asked)  # the hub's own sweep makes it ready
            assert [one["id"] for one in claimed.json()["runs"]] == [run]
            assert (await http.get("api/v1/openapi.json")).status_code == 200
            assert (await http.get("healthz")).status_code == 200
            assert (await http.get("api/v1/nothing")).json()["code"] == "not_found"

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.parametrize("mount", [in_starlette, in_fastapi, in_litestar, in_django])
def test_a_mounted_hub_asks_for_tokens_unless_it_is_told_to_be_open(tmp_path: Path, mount: Callable[[HubApp], Application]) -> None:
    async def go() -> None:
        async with mounted(tmp_path / "hub.db", mount) as http:
            for method, path in (("GET", "runs"), ("PUT", "jobs/mail"), ("POST", "tokens"), ("POST", "worker/claim")):
                refused = await http.request(method, f"api/v1/{path}", json={})
                assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
                assert "windlass tokens create" in refused.json()["hint"]
            assert (await http.get("")).status_code == 200  # the page, which asks for a token
            engine = Engine(AsyncSqlite(tmp_path / "hub.db", SystemClock()), SystemClock())
            _, secret = await engine.create_token("ops", ["read"])
            assert (await http.get("api/v1/runs", headers={"Authorization": f"Bearer {secret}"})).status_code == 200
            await engine.close()

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.parametrize("open", [False, True])
def test_a_mounted_hub_that_is_reached_through_a_socket_is_open_only_when_it_is_told_so(tmp_path: Path, open: bool) -> None:
    served = ServedHub(tmp_path / "hub.db", mounted="/ops/jobs", open=open)
    assert httpx.get(served.url + "ops/jobs/api/v1/runs", timeout=60).status_code == (200 if open else 401)
    served.stop()
