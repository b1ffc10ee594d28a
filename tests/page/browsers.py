"""Debian's chromium, and a page in it that remembers everything that must not happen."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, sync_playwright

PATIENCE = 60_000
"""Milliseconds after which what a test waits for has failed."""

WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
for (const name of ["alert", "confirm", "prompt"]) window[name] = () => { window.hacked = name; };
"""


def found() -> str | None:
    """Where chromium is on this machine."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def launch(playwright: Playwright) -> Browser:
    """Chromium; without its sandbox only where it could not start with it."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    return playwright.chromium.launch(executable_path=found(), args=["--no-sandbox"] if root else [])


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, or the reason why there is none."""
    if found() is None:
        where = " (apt-get install chromium)" if os.environ.get("CI") else ""
        pytest.skip(f"there is no chromium on this machine{where}")
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


class Watched:
    """A page, and what went wrong on it."""

    def __init__(self, context: BrowserContext) -> None:
        self.wrong: list[str] = []
        self.requests: list[str] = []
        context.add_init_script(WATCH)
        context.set_default_timeout(PATIENCE)
        self.page: Page = context.new_page()
        self.page.on("dialog", self._dialog)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("console", self._console)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _dialog(self, dialog: Any) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _console(self, message: Any) -> None:
        # A hub that refuses or is away is said in the console by the browser itself.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text and "net::ERR" not in message.text:
            self.wrong.append(f"{message.type}: {message.text}")

    def check(self) -> None:
        """Nothing has run that was not ours, and nothing broke the policy or the page."""
        assert self.page.evaluate("window.hacked") is None
        assert self.page.evaluate("window.violations") == []
        assert self.wrong == []
