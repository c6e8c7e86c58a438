# Everything happens in .venv; each stamp file says that an installation is up to date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export TOKENIZERS_PARALLELISM := false

.PHONY: quickstart test test-slow test-flakes test-two-processes docs quality style clean

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("hf_dualpath needs Python 3.10 or newer; set PYTHON=") if sys.version_info < (3, 10) else None'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps simuleval==1.1.4
	touch $@ $(VENV)/.installed

$(VENV)/.installed-slow: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test,ray]"
	touch $@

quickstart: $(VENV)/.installed ## set up and stream a translation
	HF_HUB_OFFLINE=1 $(BIN)/python scripts/quickstart.py

test: $(VENV)/.installed-test ## set up and pass the tests
	$(BIN)/python -m pytest -q -n 2

test-slow: $(VENV)/.installed-slow ## the tests that train, and those that need Ray
	$(BIN)/python -m pytest -q -m slow

test-flakes: $(VENV)/.installed-test ## the suite three times, each in another order
	for seed in 1 2 3; do FUZZ_AT_RANDOM=1 $(BIN)/python -m pytest -q -n 2 -o addopts="-m 'not slow' --strict-markers" --randomly-seed=$$seed || exit 1; done

test-two-processes: COUNT ?= 100
test-two-processes: $(VENV)/.installed-test ## what the tests run on two processes, again and again
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python tests/training/two_processes_again.py $(COUNT)

docs: $(VENV)/.installed-test ## the API reference, from the docstrings, into build/docs
	$(BIN)/python -m pdoc --docformat google -o build/docs hf_dualpath '!hf_dualpath.evaluation.evaluate_modules'

quality: $(VENV)/.installed-test ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

style: $(VENV)/.installed-test ## mend style, and give the checkpoint that ships the code that travels with it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	for file in model_cards/dualpath-tatoeba-de-en/*.py; do cp hf_dualpath/model/$$(basename $$file) $$file; done

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
