# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""vLLM's backend "uccl" of weight transfer: a trainer's weights into the workers of servers.

    trainer = WeightTransferTrainerFactory.trainer_init(UcclTrainerInitInfo(rank=0), client=client, source=source)
    trainer.send_weights()                           # after each step

A server takes it by ``--weight-transfer-config '{"backend": "uccl"}'``. Endpoints have the options of their
environment (``UCCL_P2P_*``). vLLM 0.32 was tried.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from uccl import _plugins
from uccl.weights import Progress, Publisher, Subscriber
from uccl.weights._tensors import dtype_of

_plugins.vllm()  # a trainer may load none of vLLM's plug-ins


@dataclass
class UcclTrainerInitInfo(TrainerInitInfo):
    """What a trainer chooses. ``rank`` 0 publishes.

    ``batch_bytes``: how many bytes of tensors at a time; the sender and each worker have as much host memory for
    them. 0: all at once, and then a transfer that fails leaves a worker's weights as they were. ``timeout``: a worker
    gives up after so many seconds without a byte. ``workers``: how many there are, of all servers; then they stage
    while they go on serving, and pause only to load. For ``batch_bytes`` 0.
    """

    backend: ClassVar[str] = "uccl"

    batch_bytes: int = 0
    timeout: float = 60.0
    workers: int = 0


@dataclass
class UcclWeightTransferInitInfo(WeightTransferInitInfo):
    """What the trainer tells the workers: the place of its publisher, ``timeout``, and whether to stage while serving."""

    place: str
    timeout: float
    beside: bool = False


@dataclass
class UcclWeightTransferUpdateInfo(WeightTransferUpdateInfo):
    """A batch: the publisher's version, and its tensors in the order in which they are loaded."""

    version: int
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class UcclWeightTransferEngine(WeightTransferEngine[UcclWeightTransferInitInfo, UcclWeightTransferUpdateInfo]):
    """A worker's side. vLLM calls it from one thread."""

    init_info_cls = UcclWeightTransferInitInfo
    update_info_cls = UcclWeightTransferUpdateInfo

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        self._trainer: UcclWeightTransferInitInfo | None = None
        self._subscriber: Subscriber | None = None
        self._wanted: list[tuple[str, str, list[int]]] = []
        self._tensors: dict[str, torch.Tensor] = {}
        self._staging: Future[None] | None = None
        self._loading = False  # the model's layers wait for the rest of an update

    def init_transfer_engine(self, init_info: UcclWeightTransferInitInfo) -> None:
        self.shutdown()
        self._trainer = init_info
        self.defers_processing = init_info.beside

    def start_weight_update(self) -> None:
        """Nothing: the model stays as it is until a batch has come."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        if self._staging is None and self.device.type != "cpu":  # vLLM's own asks for an accelerator in any case
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UcclWeightTransferUpdateInfo) -> None:
        """Stages a batch in host memory, then loads it; or begins to stage it. TimeoutError: the trainer is gone; and
        those of ``Subscriber.stage``."""
        if self._trainer is not None and self._trainer.beside:
            self.drain_pending()
            self._staging = _beside(lambda: self._stage(update_info))
            return
        try:
            self._stage(update_info)
            self._load()
        except BaseException:
            self.finish_weight_update()
            raise

    def drain_pending(self) -> None:
        """Waits for what is staged while the worker goes on serving, and loads it. Errors are those of its stage."""
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.result()
            self._load()

    def _load(self) -> None:
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        if not self._loading:
            self._loading = True
            initialize_layerwise_reload(self.model)
        with disable_mtp_completeness_check():
            self.model.load_weights(self._tensors.items())

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        try:
            self.drain_pending()
        finally:
            if self._loading:
                self._loading = False
                finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        if self._subscriber is not None:
            self._subscriber.close()
        self._subscriber = None
        self._tensors = {}

    def _stage(self, batch: UcclWeightTransferUpdateInfo) -> None:
        if self._trainer is None:
            raise RuntimeError(f"version {batch.version} was announced before init_transfer_engine said whose it is")
        wanted = list(zip(batch.names, batch.dtype_names, batch.shapes, strict=True))
        if self._subscriber is None or wanted != self._wanted:
            # All workers have the last batch by now, so nobody takes it from this one.
            self.shutdown()
            tensors = {name: torch.empty(shape, dtype=dtype_of(name, kind), device="cpu") for name, kind, shape in wanted}
            self._subscriber = Subscriber(self._trainer.place, tensors)
            self._wanted, self._tensors = wanted, tensors
        self._subscriber.stage(batch.version, in_place=True, progress=_watch(batch.version, self._trainer))
        self._subscriber.commit()


class UcclTrainerWeightTransferEngine(TrainerWeightTransferEngine[UcclTrainerInitInfo]):
    """The trainer's side, on each of its ranks."""

    init_info_cls = UcclTrainerInitInfo

    def __init__(self, *, client: VLLMWeightSyncClient, source: WeightSource, info: UcclTrainerInitInfo) -> None:
        super().__init__(client=client, source=source, is_sender=info.is_sender)
        self._weights = source
        self._batch_bytes = info.batch_bytes
        self._timeout, self._workers = info.timeout, info.workers
        self._version = 0
        self.paused = 0.0  # seconds: the last call to workers that staged while serving, in which they loaded
        self._publisher = Publisher() if info.is_sender else None

    @classmethod
    def trainer_init(
        cls, init_info: UcclTrainerInitInfo, *, client: VLLMWeightSyncClient, source: WeightSource | None = None
    ) -> "UcclTrainerWeightTransferEngine":
        """ValueError: no source, or one whose ranks hold parts of the model: rank 0 sends all that it is given; or both
        ``workers`` and ``batch_bytes``."""
        if init_info.workers and init_info.batch_bytes:
            raise ValueError("workers that stage while they serve take all weights at once: batch_bytes must be 0")
        if source is None:
            raise ValueError("weight transfer by uccl needs a WeightSource: it sends whole sets of weights")
        if source.held_names() is not None:
            raise ValueError(
                f"rank {init_info.rank}'s WeightSource holds a part of the model; uccl sends from rank 0 alone, so "
                "the source must give every tensor there (held_names() None)"
            )
        engine = cls(client=client, source=source, info=init_info)
        if engine._publisher is not None:
            told = UcclWeightTransferInitInfo(engine._publisher.place, init_info.timeout, init_info.workers > 0)
            try:
                client.init_weight_transfer_engine(asdict(told))
            except BaseException:
                engine.shutdown()
                raise
        return engine

    def send_weights(self) -> None:
        """Returns when all workers have loaded them. Then the tensors may change."""
        if self._publisher is None:
            for _ in self._weights:  # it may gather them from all ranks
                pass
            return
        self.client.start_weight_update()
        for batch in self._batches():
            self._send(self._publisher, batch)
        if not self._workers:
            self.client.finish_weight_update()

    def shutdown(self) -> None:
        if self._publisher is not None:
            self._publisher.close()

    def _batches(self) -> Iterator[dict[str, torch.Tensor]]:
        batch: dict[str, torch.Tensor] = {}
        size = 0
        seen: set[str] = set()
        for name, tensor in self._weights:
            if name in seen:
                raise ValueError(f"the WeightSource gives '{name}' twice")
            seen.add(name)
            if batch and self._batch_bytes and size + tensor.nbytes > self._batch_bytes:
                yield batch
                batch, size = {}, 0
            batch[name] = tensor
            size += tensor.nbytes
        if batch:
            yield batch

    def _send(self, publisher: Publisher, batch: dict[str, torch.Tensor]) -> None:
        self._version += 1
        told = UcclWeightTransferUpdateInfo(
            version=self._version,
            names=list(batch),
            dtype_names=[str(tensor.dtype).removeprefix("torch.") for tensor in batch.values()],
            shapes=[list(tensor.shape) for tensor in batch.values()],
        )
        publisher.publish(self._version, batch)
        try:
            self.client.update_weights(asdict(told))
            if self._workers:
                with contextlib.suppress(TimeoutError):  # the workers say what is wrong
                    publisher.wait_copies(self._version, self._workers, self._timeout)
                self._load_staged()
        finally:
            publisher.withdraw(self._version)

    def _load_staged(self) -> None:
        begun = time.monotonic()
        try:
            self.client.finish_weight_update()
        except BaseException:
            with contextlib.suppress(Exception):
                self.client.finish_weight_update()  # vLLM's update is still open
            raise
        self.paused = time.monotonic() - begun


def _beside(call: Callable[[], None]) -> "Future[None]":
    """In a thread of its own, which does not keep the process alive."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="uccl-weights", daemon=True).start()
    return done


def _watch(version: int, trainer: UcclWeightTransferInitInfo) -> Callable[[Progress], None]:
    """Ends a stage to which no more bytes come: the version is published already, so it need not wait for that."""
    come, since = -1, 0.0

    def watch(now: Progress) -> None:
        nonlocal come, since
        if now.bytes != come:
            come, since = now.bytes, time.monotonic()
        elif time.monotonic() - since > trainer.timeout:
            raise TimeoutError(
                f"version {version} of the weights: {come} bytes have come, and no more for {trainer.timeout:g} s: the "
                f"trainer at {trainer.place} is gone, or cannot be reached from here"
            )

    return watch
