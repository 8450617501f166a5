"""Executes a user's Python program or YAML document with the options of a command."""

import runpy
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastream.errors import DataflowError, ElastreamError, InputError

if TYPE_CHECKING:
    from elastream.api.options import RunOptions
    from elastream.documents.dataflow import Document, Setting


def execute(file: Path, options: "RunOptions") -> Mapping[str, Any] | None:
    """Execute `file` with `options`; returns the globals of a program that ended without calling `run(...)`, else None.

    Raises ElastreamError for every error that the user can correct, including those in the user's code; SystemExit and
    KeyboardInterrupt pass.
    """
    if not file.is_file():
        raise InputError(f"there is no file {file}")
    if file.suffix in (".yaml", ".yml"):
        _run_document(file, options)
        return None
    if file.suffix == ".py":
        return _run_program(file, options)
    raise InputError(f"{file} is neither a Python program (.py) nor a document (.yaml)")


def _run_document(file: Path, options: "RunOptions") -> None:
    from elastream.api.options import with_options
    from elastream.documents.dataflow import load_document

    document = load_document(file)
    policy = options.policy or document.policy.build()
    cloud = options.cloud or _cloud_of(document).build()
    from elastream.api.run import run
    from elastream.recording.parts import RETENTION

    given = {
        "policy": options.policy,
        "cloud": options.cloud,
        "consistency": options.consistency,
        "replicas": options.replicas,
        "state_partitions": options.state_partitions,
    }
    replaced = [key for key, value in given.items() if value is not None]
    with with_options(options), document.placing(*replaced):
        run(
            document.flow,
            policy=policy,
            cloud=cloud,
            target_latency=document.target_latency,
            guards=document.guards,
            tables=document.tables,
            consistency=document.consistency or "batch",
            replicas=document.replicas,
            retention=RETENTION if document.retention is None else document.retention,
            state_partitions=document.state_partitions,
            scaling=document.scaling,
            currency=document.currency,
        )


def _cloud_of(document: "Document") -> "Setting":
    if document.cloud is None:
        raise DataflowError(f"{document.path}: key 'cloud' is missing: a run needs one, such as 'cloud: local'")
    return document.cloud


def _run_program(file: Path, options: "RunOptions") -> Mapping[str, Any] | None:
    from elastream.api.options import with_options
    from elastream.documents.user_code import blame, importing_from, placed

    runs = 0

    def count(*about: Any) -> None:
        nonlocal runs
        runs += 1
        if options.before is not None:
            options.before(*about)

    arguments, sys.argv = sys.argv, [str(file)]
    try:
        with with_options(replace(options, before=count)), importing_from(file.parent):
            names = runpy.run_path(str(file), run_name="__main__")
    except ElastreamError as error:
        raise placed(error, file.parent) from error
    except Exception as error:
        raise blame(error, file.parent) or error from error
    finally:
        sys.argv = arguments
    return None if runs else names
