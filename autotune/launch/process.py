"""Servers as local processes, each in its own session, ended with all their descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psutil

from autotune.canonical import Json
from autotune.clock import Clock, StopSignal
from autotune.engines.engine import ExitInfo
from autotune.engines.facts import engine_facts
from autotune.engines.plan import LaunchPlan
from autotune.errors import EnvironmentFault
from autotune.launch import lineage, pid_record, ports, preflight
from autotune.launch.launcher import Ticket
from autotune.launch.lineage import ProcessId
from autotune.launch.pid_record import PidRecord
from autotune.launch.server_log import MaskedLog

TERM_WAIT_S = 10.0
"""How long a server may take to end after SIGTERM."""
ORPHAN_WAIT_S = 1.0
"""How long its children may outlive it before they are killed."""
KILL_WAIT_S = 10.0
"""How long the kernel may take to remove killed processes."""
LOG_WAIT_S = 2.0
"""How long the log's reader may take to reach the end once all writers are gone."""
SWEEP_WAIT_S = 3.0


class ProcessServer:
    """A server started by `ProcessLauncher`. One thread at a time may use it."""

    def __init__(
        self,
        *,
        plan: LaunchPlan,
        port: int,
        process: subprocess.Popen[bytes],
        record: PidRecord,
        log: MaskedLog,
        clock: Clock,
        stop: StopSignal,
        leases: ports.PortLeases,
    ) -> None:
        self.plan = plan
        self.url = f"http://{ports.LOOPBACK}:{port}"
        self.log_path: Path | None = log.path
        self._port = port
        self._leases = leases
        self._process = process
        self._record = record
        self._log = log
        self._clock = clock
        self._stop = stop
        self._started = clock.monotonic()
        self._next_look = self._started
        self._ended: ExitInfo | None = None
        self._reader = threading.Thread(target=self._read_output, name="server-log", daemon=True)
        self._reader.start()

    def identity(self) -> Mapping[str, Json]:
        return {
            "kind": "process",
            "pid": self._record.root.pid,
            "create_time": self._record.create_time,
            "start_ticks": self._record.root.start_ticks,
            "launch": self._record.launch,
        }

    def poll(self) -> ExitInfo | None:
        if self._ended is not None:
            return self._ended
        code = self._exit_code()
        if code is not None:
            return ExitInfo(code=code)
        if self._clock.monotonic() >= self._next_look:
            self._remember(self._family())
        return None

    def stop(self, *, forced: bool = False) -> ExitInfo:
        if self._ended is not None:
            return self._ended
        by_us = self._exit_code() is None
        self._remember(self._family())
        if by_us and not forced:
            self._terminate()
        left = lineage.end_all(
            self._family,
            clock=self._clock,
            polite_s=0.0 if forced else TERM_WAIT_S,
            orphan_s=ORPHAN_WAIT_S,
            kill_s=KILL_WAIT_S,
            leader=self._record.root,
            hurry=lambda: self._stop.forced,
        )
        if left:
            raise _survivors(left)
        code = self._process.wait()
        self._reader.join(LOG_WAIT_S)
        self._log.close()
        self._record.remove()
        self._leases.give_back(self._port)
        self._ended = ExitInfo(code=code, by_us=by_us)
        return self._ended

    def listener(self) -> str | None:
        """Who listens at our address: None nobody, "" this server, else the foreigner in words."""
        inodes = ports.listening_inodes(self._port)
        if not inodes:
            return None
        ours = ports.inodes_of(process.pid for process in self._family())
        return "" if inodes <= ours else ports.holder_of(self._port)

    def _exit_code(self) -> int | None:
        """The launched process' end. It is not reaped before `stop` is through, so that neither its
        pid nor its session can pass to a stranger meanwhile.
        """
        if self._process.returncode is not None:
            return self._process.returncode
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        ended = os.waitid(os.P_PID, self._process.pid, flags)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _family(self) -> set[ProcessId]:
        """All that runs and came from this launch."""
        table = lineage.read_table()
        root = self._record.root
        found = lineage.session_members(table, root)
        found |= lineage.marked(
            table, lineage.LAUNCH_MARKER, self._record.launch, since_ticks=root.start_ticks
        )
        found |= lineage.descendants(table, {root, *self._record.family, *found})
        return lineage.running_only(table, found)

    def _remember(self, family: set[ProcessId]) -> None:
        """Keep the descendants: one that leaves its session, rewrites its environment and loses its
        parent can later be told by nothing else. Looks get rarer as the server settles.
        """
        now = self._clock.monotonic()
        age = now - self._started
        self._next_look = now + (0.2 if age < 5 else 1.0 if age < 120 else 5.0)
        if not family <= self._record.family:
            self._record = replace(self._record, family=self._record.family | family)
            try:
                self._record.write()
            except OSError as error:  # a full disk must not end a running measurement
                self._log.error = error

    def _terminate(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGTERM)
        except ProcessLookupError:
            return

    def _read_output(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None
        with pipe:
            while data := os.read(pipe.fileno(), 64 * 1024):
                self._log.feed(data)


class ProcessLauncher:
    """Starts plans as processes of this machine."""

    kind = "process"

    def __init__(
        self, *, clock: Clock, stop: StopSignal, environ: Mapping[str, str] | None = None
    ) -> None:
        self._clock = clock
        self._stop = stop
        self._environ = dict(os.environ if environ is None else environ)
        self._leases = ports.PortLeases()

    def check(self, plan: LaunchPlan) -> None:
        preflight.resolve_secrets(plan, self._environ)
        preflight.check_program(plan, self._environ)
        preflight.check_folders(plan)
        preflight.check_fixed_port(plan)

    def start(self, plan: LaunchPlan, ticket: Ticket) -> ProcessServer:
        launch = uuid.uuid4().hex
        environment = self._environment(plan, ticket, launch)
        port = self._port(plan)
        ticket.directory.mkdir(parents=True, exist_ok=True)
        secrets = preflight.secret_values(plan, self._environ, inherited=True)
        log = MaskedLog(ticket.directory / f"{plan.member}.log", secrets)
        argv = plan.argv_for(ports.LOOPBACK, port)
        try:
            process = subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            log.close()
            self._leases.give_back(port)
            raise EnvironmentFault(
                message=f"could not start {argv[0]}", seen=error.strerror or str(error)
            ) from None
        record = _first_record(process.pid, plan, ticket, launch)
        server = ProcessServer(
            plan=plan,
            port=port,
            process=process,
            record=record,
            log=log,
            clock=self._clock,
            stop=self._stop,
            leases=self._leases,
        )
        try:
            record.write()
        except OSError as error:
            server.stop(forced=True)
            raise EnvironmentFault(
                message=f"could not write {record.path}",
                seen=error.strerror or str(error),
                so=f"{argv[0]} was ended again",
            ) from None
        return server

    def sweep(self, study_id: str, directory: Path) -> list[str]:
        records = pid_record.records_of(study_id, directory)
        named: dict[ProcessId, str] = {}

        def find() -> set[ProcessId]:
            table = lineage.read_table()
            found = lineage.marked(table, lineage.STUDY_MARKER, study_id)
            for record in records:
                found |= lineage.session_members(table, record.root)
            found |= lineage.descendants(table, pid_record.known(records) | found)
            running = lineage.running_only(table, found)
            for process in running - named.keys():
                named[process] = _description(process)
            return running

        for process in find():
            lineage.send(process, signal.SIGTERM)
        left = lineage.end_all(
            find,
            clock=self._clock,
            polite_s=SWEEP_WAIT_S,
            orphan_s=SWEEP_WAIT_S,
            kill_s=KILL_WAIT_S,
            hurry=lambda: self._stop.forced,
        )
        if left:
            raise _survivors(left)
        for record in records:
            record.remove()
        return [named[process] for process in sorted(named)]

    def _environment(self, plan: LaunchPlan, ticket: Ticket, launch: str) -> dict[str, str]:
        # What shapes an engine is in the plan: the shell that resumes a study may be another one
        facts = engine_facts(plan.engine)
        environment = {
            **{k: v for k, v in self._environ.items() if not facts.shapes_launch(k)},
            **plan.env,
            **preflight.resolve_secrets(plan, self._environ),
            lineage.STUDY_MARKER: ticket.study_id,
            lineage.TRIAL_MARKER: str(ticket.trial),
            lineage.LAUNCH_MARKER: launch,
        }
        if plan.gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(plan.gpus)
        return environment

    def _port(self, plan: LaunchPlan) -> int:
        if plan.port is None:
            return self._leases.take()
        if not ports.wait_free(plan.port, timeout_s=ports.FREE_WAIT_S, clock=self._clock):
            raise EnvironmentFault(
                message=f"port {plan.port} is busy",
                seen=f"held by {ports.holder_of(plan.port)}",
                so="nothing was started and the other server was left alone",
                hint="leave `port` out to use a free one",
            )
        return plan.port


def _first_record(pid: int, plan: LaunchPlan, ticket: Ticket, launch: str) -> PidRecord:
    row = lineage.read_row(pid)
    assert row is not None  # our own child, not reaped
    try:
        created = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        created = time.time()
    return PidRecord(
        path=pid_record.record_path(ticket, plan.member),
        study=ticket.study_id,
        trial=ticket.trial,
        program=plan.argv[0],
        launch=launch,
        boot=lineage.boot_id(),
        create_time=created,
        root=row.id,
        family=frozenset({row.id}),
    )


def _description(process: ProcessId) -> str:
    trial = lineage.environment_value(process.pid, lineage.TRIAL_MARKER)
    whose = f"trial {trial}" if trial is not None else "this study"
    words = lineage.command_line(process.pid)[:80] or "unknown"
    return f"ended process {process.pid} ({words}), left over from {whose}"


def _survivors(left: set[ProcessId]) -> EnvironmentFault:
    names = ", ".join(
        f"pid {p.pid} ({lineage.command_line(p.pid)[:80] or 'unknown'})" for p in sorted(left)
    )
    return EnvironmentFault(
        message="processes of the server could not be ended",
        seen=f"still running after SIGKILL: {names}",
        so="nothing else is launched while they hold memory",
        hint="`ps -o pid,stat,wchan,cmd -p PID`; one in state D waits for a driver",
    )
