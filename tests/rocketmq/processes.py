"""RocketMQ's own processes: a name server, a broker on a store, and a client."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqstore_spark.remoting.codec.bodies import parse_body
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import ask, broker
from tests.support.processes.ports import free_port
from tests.support.processes.serving import eventually

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it since Python 3.11

__all__ = [
    *("SIZES", "Admin", "Broker", "Client", "NameServer", "Program", "RocketMq"),
    *("brokers_of_both_kinds", "own_properties"),
]

SIZES = {
    "mappedFileSizeCommitLog": 256 << 10,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20_000,
}
"""Files so small that they roll, for both sides."""

_PATIENCE = 90.0
_ADMIN_PATIENCE = 120.0

_SMALL = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For processes that start soon and do little."""

# RocketMQ 4.9 reaches into parts of Java that are closed since 16.
_JAVA_FLAGS = [
    *("--add-exports", "java.base/jdk.internal.ref=ALL-UNNAMED"),
    *("--add-exports", "java.base/sun.nio.ch=ALL-UNNAMED"),
    *("--add-opens", "java.base/java.lang=ALL-UNNAMED"),
    *("--add-opens", "java.base/java.nio=ALL-UNNAMED"),
    *("--add-opens", "java.base/jdk.internal.ref=ALL-UNNAMED"),
    *("--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED"),
    # A broker on a disk that is nearly full removes its oldest files.
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.99",
]


_LOGGING = """\
<configuration>
  <appender name="FILE" class="ch.qos.logback.core.FileAppender">
    <file>${user.home}/logs/root.log</file>
    <encoder><pattern>%d %p %c{0} - %m%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="FILE"/></root>
</configuration>
"""
"""Without it, programs of RocketMQ 5 may log to standard output, where they also answer."""


class RocketMq:
    """A distribution of RocketMQ 4.9 or 5.3.

    Args:
        home: its folder, which holds `lib/*.jar` and `conf/`.
        java: home of a JDK.
        folder: for the logs of its processes.
        java_options: memory, garbage collector and compiler of its processes.
    """

    def __init__(
        self, home: Path, java: Path, folder: Path, java_options: Sequence[str] = _SMALL
    ) -> None:
        self.home = home
        self.folder = folder
        self._java = java / "bin" / "java"
        self._java_options = java_options

    @property
    def version(self) -> tuple[int, ...]:
        """Its version, such as (4, 9, 8)."""
        names = [jar.name for jar in sorted((self.home / "lib").glob("rocketmq-*.jar"))]
        found = re.search(r"-([0-9]+)\.([0-9]+)\.([0-9]+)", " ".join(names))
        assert found, f"no jar of {self.home} tells its version"
        return tuple(map(int, found.groups()))

    def user_home(self) -> Path:
        """A folder for one process: it logs below it."""
        made = Path(tempfile.mkdtemp(dir=self.folder))
        (made / "logback.xml").write_text(_LOGGING)
        return made

    def application(self, *arguments: str) -> list[str]:
        """The command of the application that rounds of faults kill; compiles it."""
        home, source = self.user_home(), Path(__file__).with_name("Application.java")
        compiler = str(self._java.with_name("javac"))
        subprocess.run(
            [compiler, "-cp", f"{self.home}/lib/*", "-d", str(home), str(source)], check=True
        )
        return [*self._command(home, home), "Application", *arguments]

    def _command(self, user_home: Path, *folders: Path) -> list[str]:
        """The command of Java, with its own classes and those of some folders."""
        classes = ":".join([str(user_home), f"{self.home}/lib/*", *map(str, folders)])
        options = (f"-Duser.home={user_home}", *self._java_options, *_JAVA_FLAGS)
        return [str(self._java), *options, "-cp", classes]

    def start(self, user_home: Path, *arguments: object, **pipes: Any) -> subprocess.Popen[str]:
        """Start one of its classes, or a source file."""
        return subprocess.Popen(
            [*self._command(user_home), *map(str, arguments)],
            cwd=user_home,
            env={**os.environ, "ROCKETMQ_HOME": str(self.home)},
            text=True,
            **pipes,
        )


class _Server:
    """A process that prints a line when it serves.

    Attributes:
        settings: the file of its configuration.
    """

    def __init__(
        self,
        rocketmq: RocketMq,
        main: str,
        settings: Mapping[str, Any],
        java_options: Iterable[str] = (),
    ) -> None:
        self._home = rocketmq.user_home()
        self._output = self._home / "output"
        self.settings = self._home / "settings.conf"
        self.settings.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        with self._output.open("w") as out:
            self.process = rocketmq.start(
                self._home,
                *java_options,
                main,
                "-c",
                self.settings,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._output.read_text()

    @property
    def log(self) -> str:
        """What it has logged."""
        return "".join(file.read_text() for file in self._home.rglob("*.log"))

    def ended(self) -> int:
        """Wait until it has ended; returns its exit code."""
        return self.process.wait(_PATIENCE)

    def kill(self) -> None:
        """Kill it as a crash does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Stop it in order."""
        self.process.send_signal(signal.SIGTERM)
        assert self.ended() == 128 + signal.SIGTERM, self.output

    def _serving(self) -> None:
        """Wait until it serves; end it if it does not."""
        with ExitStack() as cleanup:
            cleanup.push(self.__exit__)
            eventually(
                lambda: "boot success" in self.output or self.process.poll() is not None, _PATIENCE
            )
            assert "boot success" in self.output, self.output
            cleanup.pop_all()


class NameServer(_Server):
    """A name server."""

    def __init__(self, rocketmq: RocketMq) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        super().__init__(rocketmq, main, {"listenPort": port})

    def __enter__(self) -> NameServer:
        self._serving()
        return self


class Broker(_Server):
    """A broker on a store. As a context manager it is one that serves.

    Args:
        rocketmq: the distribution.
        name_server: where it is made known.
        port: where it listens.
        store: the store directory.
        java_options: of its Java.
        settings: keys of its configuration beside those of `SIZES`.
    """

    def __init__(
        self,
        rocketmq: RocketMq,
        name_server: str,
        port: int,
        store: Path,
        java_options: Iterable[str] = (),
        **settings: Any,
    ) -> None:
        self.store = store
        self._name_servers = name_server.split(";")
        given = {
            "brokerName": "broker-a",
            "brokerIP1": "127.0.0.1",
            "namesrvAddr": name_server,
            "listenPort": port,
            "storePathRootDir": store,
            "registerNameServerPeriod": 10_000,
            "flushDiskType": "ASYNC_FLUSH",
            "diskMaxUsedSpaceRatio": 95,
        }
        main = "org.apache.rocketmq.broker.BrokerStartup"
        told = {**given, **SIZES, **settings}
        self._identity = told["brokerName"], told.get("brokerId", 0), f"127.0.0.1:{port}"
        super().__init__(rocketmq, main, told, java_options)

    def __enter__(self) -> Broker:
        self._serving()
        with ExitStack() as cleanup:
            cleanup.push(self.__exit__)
            eventually(self._is_registered, _PATIENCE)
            cleanup.pop_all()
        return self

    def _is_registered(self) -> bool:
        """Whether all name servers know it: 5.3 may serve before it has a connection to them."""
        name, broker_id, address = self._identity
        asked = Command(RequestCode.GET_BROKER_CLUSTER_INFO)
        for server in self._name_servers:
            (told,) = ask(server, asked)
            brokers = parse_body(told.body)["brokerAddrTable"]
            if brokers.get(name, {}).get("brokerAddrs", {}).get(str(broker_id)) != address:
                return False
        return True

    def stop(self) -> None:
        """Stop it in order; it then says that its store is closed."""
        super().stop()
        assert not (self.store / "abort").exists()


class Program:
    """A Java program that is told what to do by lines, and answers with lines of JSON.

    Args:
        rocketmq: the distribution.
        source: its source file.
        arguments: of its command line.
    """

    def __init__(self, rocketmq: RocketMq, source: Path, *arguments: str) -> None:
        self.process = rocketmq.start(
            rocketmq.user_home(),
            *(source, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def answers(self, *words: object) -> Iterator[dict[str, Any]]:
        """Give a command, and the lines of its answer as they come."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            answer = json.loads(line)
            if "end" in answer:
                assert not answer["end"], f"{words}: {answer['end']}"
                return
            yield answer
        raise AssertionError(f"{words}: the client has ended")

    def ask(self, *words: object) -> list[dict[str, Any]]:
        """Give a command, and get its whole answer."""
        return list(self.answers(*words))


class Client(Program):
    """A client of RocketMQ; `Client.java` has its commands.

    Args:
        rocketmq: the distribution.
        name_server: where it asks for brokers.
        broker: the broker's address.
    """

    def __init__(self, rocketmq: RocketMq, name_server: str, broker: str) -> None:
        super().__init__(rocketmq, Path(__file__).with_name("Client.java"), name_server, broker)

    def pull(self, topic: str, tags: str = "*") -> list[dict[str, Any]]:
        """Consume a topic, or those of its messages with some tags."""
        return self._looked("pull", topic, tags)

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """What `mqadmin topicStatus` says: the minimum and maximum offset of each queue."""
        return {q["queueId"]: (q["min"], q["max"]) for q in self._looked("status", topic)}

    def _looked(self, *words: object) -> list[dict[str, Any]]:
        """Ask what changes nothing, and again if a call timed out: on a starved machine."""
        deadline = time.monotonic() + _ADMIN_PATIENCE
        while True:
            try:
                return self.ask(*words)
            except AssertionError as error:
                if "timeout" not in str(error) or time.monotonic() > deadline:
                    raise


class Admin:
    """mqadmin; `Admin.java` runs its commands.

    Args:
        rocketmq: the distribution.
        name_server: whom it asks.
        java_options: of its Java.
    """

    def __init__(self, rocketmq: RocketMq, name_server: str, *java_options: str) -> None:
        self._name_server = name_server
        self.process = rocketmq.start(
            rocketmq.user_home(),
            *(*java_options, Path(__file__).with_name("Admin.java")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def __call__(self, command: str) -> str:
        """Run a command; returns what it prints."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command} -n {self._name_server}\n")
        self.process.stdin.flush()
        said: list[str] = []
        for line in self.process.stdout:
            if line == "end of answer\n":
                return "".join(said)
            said.append(line)
        raise AssertionError("mqadmin has ended: " + "".join(said))

    def shows(self, command: str, text: str) -> None:
        """Run a command until it prints a text: on a starved machine, its calls time out."""
        said = ""
        deadline = time.monotonic() + _ADMIN_PATIENCE
        while text.replace(" ", "") not in said.replace(" ", ""):
            assert time.monotonic() < deadline, f"{command}: {said}"
            said = self(command)

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


def own_properties(message: Mapping[str, Any]) -> dict[str, str]:
    """The properties of a pulled message without those that the consumer adds."""
    return {k: v for k, v in message["properties"].items() if not re.match("M(IN|AX)_OFFSET", k)}


def brokers_of_both_kinds(
    rocketmq: RocketMq, name_server: str, port: int, folder: Path
) -> Iterator[AbstractContextManager[object]]:
    """A store process as a broker, and then one of RocketMQ, at the same address."""
    yield broker(folder / "ours", namesrv_addr=name_server, listen_port=port)
    yield Broker(rocketmq, name_server, port, folder / "theirs")
