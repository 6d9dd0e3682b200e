"""What tests ask of the page in a browser, whatever is watched."""

from __future__ import annotations

import json
from typing import Any

from tests.browser import Page

LOSS = "document.querySelector('#plot-loss canvas')?.toDataURL()"
# All steps that are done, as the page has them.
STEPS = "live.state()?.view?.progress.step"
VERDICT = "document.querySelector('h1')?.textContent"
CONNECTION = "document.querySelector('.connection')?.textContent"
WITHIN_S = 20.0


def wait_for(page: Page, expression: str, within_s: float = WITHIN_S) -> Any:
    """The value of an expression of JavaScript as soon as there is a true one."""
    return page.run(
        f"""new Promise((done, failed) => {{
            const end = performance.now() + {1000 * within_s};
            const look = () => {{
                const value = ({expression});
                if (value) done(value);
                else if (performance.now() > end) failed(new Error({json.dumps(expression)}));
                else setTimeout(look, 30);
            }};
            look();
        }})"""
    )


def shown(page: Page, url: str) -> None:
    """Open a page, and wait until it shows a run, or why there is none."""
    page.visit(url)
    wait_for(page, "live.state()")
    page.settle()


def require_moving(page: Page) -> None:
    """The chart of the loss moves with the steps."""
    steps, loss = page.run(STEPS), wait_for(page, LOSS)
    wait_for(page, f"{STEPS} > {steps} && {LOSS} !== {json.dumps(loss)}")


def require_own_requests(page: Page, url: str) -> None:
    """All that it asked for is below its own address."""
    assert page.requests
    assert [each for each in page.requests if not each.startswith(url)] == []


def text_of(page: Page) -> str:
    """All text, that of folded parts too."""
    found: str = page.run(
        "document.querySelector('header').textContent + document.querySelector('main').textContent"
    )
    return found
