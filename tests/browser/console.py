"""The console as a user has it: go to a page, read it, press what is on it."""

from __future__ import annotations

from playwright.sync_api import ConsoleMessage, Dialog, Locator, Page, Request, expect

# Chromium ends requests when the machine gets or loses an interface, as by tests of machines. The page asks again.
NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"


class Console:
    """One open console.

    Attributes:
        wrong: errors of scripts, violations of the policy, requests to elsewhere, and tokens in addresses.
        expected: status codes of answers that a test provokes; a browser notes each in its own console.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url.rstrip("/")
        self.wrong: list[str] = []
        self.expected: set[int] = set()
        self.addresses: list[str] = []
        page.on("pageerror", lambda error: self.wrong.append(f"error of a script: {error}"))
        page.on("console", self._said)
        page.on("request", self._requested)
        page.on("dialog", self._alerted)

    def go(self, address: str = "") -> Locator:
        """Open a page by its address, such as ``map``, and return its contents."""
        self.page.goto(f"{self.url}/#/{address}")
        expect(self.page.locator("main h1")).to_be_visible()
        expect(self.page.locator(".brief")).not_to_contain_text("asking")
        return self.page.locator("main")

    def press(self, name: str, within: Locator | None = None) -> None:
        """Press the button with this name for screen readers."""
        (within or self.page).get_by_role("button", name=name, exact=True).first.click()

    def confirm(self, label: str, **fields: str) -> None:
        """Fill the open dialog and press the button that acts."""
        dialog = self.page.get_by_role("dialog")
        for name, value in fields.items():
            field = dialog.locator(f"[name={name}]")
            if field.evaluate("element => element.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
        dialog.get_by_role("button", name=label, exact=True).click()

    def said(self, text: str) -> None:
        """Wait until the console says the outcome of an action."""
        expect(self.page.locator("#said")).to_contain_text(text)

    def log_in(self, token: str) -> None:
        self.page.get_by_label("Token").fill(token)
        self.press("Log in")

    def _said(self, message: ConsoleMessage) -> None:
        texts = [NETWORK_CHANGED, *(f"the server responded with a status of {status}" for status in self.expected)]
        is_expected = any(text in message.text for text in texts)
        if message.type in ("error", "warning") and not is_expected:
            self.wrong.append(f"the browser says: {message.text}")

    def _requested(self, request: Request) -> None:
        self.addresses.append(request.url)
        if not request.url.startswith((self.url, "data:")):
            self.wrong.append(f"it asks elsewhere: {request.url}")

    def _alerted(self, dialog: Dialog) -> None:
        self.wrong.append(f"a text became code: {dialog.message}")
        dialog.dismiss()
