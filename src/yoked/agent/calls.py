"""The calls that an agent answers, by name: an explicit list."""

from __future__ import annotations

from yoked.agent import (
    artefacts,
    environments,
    facts,
    fetch,
    files,
    folders,
    interfaces,
    jobs,
    listeners,
    logs,
    programs,
    reap,
    sockets,
)
from yoked.agent.server import Handler

HANDLERS: dict[str, Handler] = {
    "facts": facts.answer_facts,
    "interfaces": interfaces.answer_interfaces,
    "listen": sockets.answer_listen,
    "dial": sockets.answer_dial,
    "file_list": fetch.answer_file_list,
    "file_read": fetch.answer_file_read,
    "blobs_missing": files.answer_blobs_missing,
    "blobs_put": files.answer_blobs_put,
    "blob_append": files.answer_blob_append,
    "folder_here": folders.answer_folder_here,
    "folder_put": folders.answer_folder_put,
    "tree_checkout": folders.answer_tree_checkout,
    "kernels_here": artefacts.answer_kernels_here,
    "run": programs.answer_run,
    "environment": environments.answer_environment,
    "environment_base": environments.answer_environment_base,
    "environment_make": environments.answer_environment_make,
    "job_start": jobs.answer_job_start,
    "job_go": jobs.answer_job_go,
    "job_list": jobs.answer_job_list,
    "job_status": jobs.answer_job_status,
    "job_stop": jobs.answer_job_stop,
    "job_remove": jobs.answer_job_remove,
    "job_logs": logs.answer_job_logs,
    "job_reap": reap.answer_job_reap,
    "listener_owner": listeners.answer_listener_owner,
}
