# Every target sets up .venv first, so that each does everything on a fresh machine.
SHELL := /bin/bash
BIN := .venv/bin

.PHONY: help setup demo test test-all test-gpu lint format dist bench bench-gpu docs pictures golden size clean

help:
	@echo "make demo      train a small model on this machine, sample from it, draw its loss"
	@echo "make test      the quick tests"
	@echo "make test-all  all tests"
	@echo "make test-gpu  tests/gpu: on this machine's GPU too, where it has one; at most 20 minutes"
	@echo "make lint      ruff, mypy, import contracts"
	@echo "make format    lay out the code as lint wants it"
	@echo "make dist      the wheel and the source archive, in dist/"
	@echo "make bench     the benchmarks that need nothing else"
	@echo "make bench-gpu NANOCHAT=PATH   a GPU's figures beside nanochat's; at most 20 minutes"
	@echo "make docs      write docs/reference from the code, and build the site of docs/ in build/site"
	@echo "make pictures  record docs/pictures from a run in a lab; some minutes"
	@echo "make golden    write tests/golden from the code: wording is read as a diff"
	@echo "make size      lines, functions and sentences in tests, by package"
	@echo "make setup     .venv with all that is needed; quick when it is there"
	@echo "make clean     remove what the targets made; runs/ stays"

setup:
	@bash scripts/setup.sh

demo: setup
	@bash scripts/demo.sh

# Tests that start ranks or labs mostly wait: two at once, however many cores there are, and three
# of labs, which use a core for 0.4 of their time.
test: setup
	$(BIN)/python -m pytest -m "not slow and not gpu" -n auto --maxprocesses=4 --dist=loadfile tests/unit
	$(BIN)/python -m pytest -m "not slow and not gpu" -n 2 --dist=loadfile tests/distributed
	$(BIN)/python -m pytest -m "not slow and not gpu" -n 3 --dist=loadfile tests/lab
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist=loadfile tests/gpu

test-all: setup
	$(BIN)/python -m pytest
	$(BIN)/python -m pytest tests/gpu

test-gpu: setup
	$(BIN)/python -m pytest -m "not distributed" tests/gpu
	$(BIN)/python -m pytest -m distributed -n auto --maxprocesses=4 --dist=load tests/gpu

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Equal files of equal sources: hatchling writes one date and sorted names.
dist:
	@bash scripts/setup.sh build
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	@PYTHONPATH=src $(BIN)/python -c 'from yoked.core.source import SOURCE; print("next: pipx install", SOURCE)'

bench: setup
	$(BIN)/python benchmarks/help_startup/bench.py
	$(BIN)/python benchmarks/dtype_choice/dtype_choice.py

bench-gpu: setup
	$(BIN)/python benchmarks/gpu/bench.py $(if $(NANOCHAT),--nanochat $(NANOCHAT))

docs: setup
	$(BIN)/python -m yoked.cli.reference docs/reference
	$(BIN)/python -m yoked.doctor.pages docs/reference/checks.md
	$(BIN)/python -m sphinx -q -W --keep-going -n -b html -d build/doctrees docs build/site
	@echo "build/site/index.html is the site; a broken link would have failed"

pictures: setup
	$(BIN)/python scripts/pictures.py

golden: setup
	$(BIN)/python -m tests.unit.doctor.test_golden
	$(BIN)/python -m pytest -m "not gpu" --snapshot-update -n auto --maxprocesses=4 --dist=loadfile tests/unit
	$(BIN)/python -m pytest -m "not gpu" --snapshot-update $$(grep -rl "== snapshot" tests/distributed tests/lab)

size:
	@python3 scripts/size.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
