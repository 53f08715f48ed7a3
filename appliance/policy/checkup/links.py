"""How GPUs reach one another and the processor: what matters to engines that span several, and what starves one.

Traffic between GPUs goes over NVLink (`NV#`), through PCIe switches (`PIX`, `PXB`), through the processor's bridge
(`PHB`, `NODE`), or over the link between processors (`SYS`). With access control services on a bridge, or an IOMMU that
translates, the middle ones are slow at best; at worst NCCL waits for ever or data arrives wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

from appliance.config.model import Config
from appliance.gpufacts import Bridge, PciGpu, Topology
from appliance.hostfacts import HostFacts, NotKnown
from appliance.quantity import UNKNOWN

from .check import ROOT_SEES, Said, good, listed, skipped, unknown, warning
from .driver import has_gpus

REDIRECT = 0x1C  # ACS: request redirect, completion redirect, upstream forwarding
BUSY = 20.0  # percent from which a link's speed is that of work
_FAR = {"SYS": "crosses the link between processors", "NODE": "crosses the processor's own bridges"}
DEEP = "llm-appliance doctor --deep tries it"


def spans(facts: HostFacts) -> Mapping[str, tuple[int, ...]]:
    """Engines that use several GPUs together."""
    placed = () if isinstance(facts.placed, NotKnown) else facts.placed
    return {each.instance: each.gpus for each in placed if len(each.gpus) > 1}


def pairs(facts: HostFacts) -> frozenset[tuple[int, int]]:
    """Pairs of GPUs that some engine uses together."""
    return frozenset(pair for gpus in spans(facts).values() for pair in combinations(sorted(gpus), 2))


def _is_single(facts: HostFacts) -> bool:
    """Whether links between GPUs mean nothing here."""
    if not isinstance(facts.bus, NotKnown) and len(facts.bus.gpus) == 1:
        return True
    return not isinstance(facts.placed, NotKnown) and not spans(facts)


def topology(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Which pairs have a short way to one another, which have P2P, and which cross processors."""
    if not has_gpus(facts):
        return []
    if not isinstance(facts.bus, NotKnown) and len(facts.bus.gpus) < 2:
        return [skipped("one GPU")]
    if isinstance(facts.topology, NotKnown):
        return [unknown(facts.topology)]
    if not facts.topology.links:
        return [unknown("nvidia-smi topo -m shows no matrix")]
    used = pairs(facts)
    bad = list(_far(facts.topology, used, facts))
    return bad or [good(_map(facts.topology) + ("" if used else "; no engine spans GPUs"))]


def _far(found: Topology, used: frozenset[tuple[int, int]], facts: HostFacts) -> Iterator[Said]:
    for word, meaning in _FAR.items():
        far = sorted(pair for pair in used if found.links.get(pair) == word)
        if far:
            who = listed(name for name, gpus in spans(facts).items() if _has(gpus, far))
            peer = [pair for pair in far if found.peer.get(pair, "OK") != "OK"]
            without = f"; without P2P: {_names(peer)}" if peer else ""
            yield warning(
                f"{who} spans {_names(far)}, which {meaning} ({word}){without}: {_map(found)}",
                f"give the engine GPUs that are near one another, or run replicas of it on single ones; {DEEP}",
            )


def _has(gpus: tuple[int, ...], wanted: list[tuple[int, int]]) -> bool:
    return any(set(pair) <= set(gpus) for pair in wanted)


def _map(found: Topology) -> str:
    """Pairs by their kind of link, with what the driver lets them do."""
    kinds: dict[str, list[tuple[int, int]]] = {}
    for pair, word in sorted(found.links.items()):
        peer = found.peer.get(pair, "")
        kinds.setdefault(word + (f" without P2P ({peer})" if peer not in ("", "OK") else ""), []).append(pair)
    if len(kinds) == 1:
        return f"all pairs {next(iter(kinds))}"
    return "; ".join(f"{kind}: {_names(of_kind)}" for kind, of_kind in kinds.items())


def _names(some: Iterable[tuple[int, int]]) -> str:
    return listed(f"{one}-{other}" for one, other in some)


def access_control(facts: HostFacts, config: Config) -> Iterable[Said]:
    """ACS on bridges, and an IOMMU that translates, between GPUs that talk over PCIe."""
    if not has_gpus(facts):
        return []
    if isinstance(facts.bus, NotKnown):
        return [unknown(facts.bus)]
    if _is_single(facts):
        return [skipped("no engine spans GPUs")]
    used = pairs(facts)
    if not isinstance(facts.topology, NotKnown) and used:
        links = [facts.topology.links.get(pair, "") for pair in used]
        if all(word.startswith("NV") for word in links):
            return [good("the GPUs that work together are linked by NVLink")]
    numbers = sorted({number for pair in used for number in pair} or range(len(facts.bus.gpus)))
    return list(_controls([facts.bus.gpus[number] for number in numbers if number < len(facts.bus.gpus)]))


def _controls(gpus: list[PciGpu]) -> Iterator[Said]:
    bridges: dict[str, Bridge] = {bridge.address: bridge for gpu in gpus for bridge in gpu.bridges}
    told = {address: bridge.acs for address, bridge in bridges.items() if bridge.acs is not UNKNOWN}
    on = [address for address, control in told.items() if control & REDIRECT]
    translated = [gpu.address for gpu in gpus if gpu.iommu.startswith("DMA")]
    if on:
        yield warning(
            f"ACS sends what GPUs tell one another up to the root, at {listed(on)}"
            + ("; the IOMMU translates it" if translated else ""),
            f"turn ACS (or IOMMU, VT-d) off in the firmware, or at each boot setpci -s {on[0]} ECAP_ACS+6.w=0000 for "
            f"each; {DEEP} and says whether NCCL_P2P_DISABLE is needed",
        )
    elif translated:
        yield warning(
            f"the IOMMU translates what {listed(translated)} read and write",
            f"add iommu=pt to the kernel's command line, or turn the IOMMU off in the firmware; {DEEP}",
        )
    elif bridges and not told:
        yield unknown("ACS of the bridges above the GPUs", ROOT_SEES)
    elif not bridges:
        yield unknown("no bridge shows above the GPUs, as in a virtual machine: its host decides", DEEP)
    else:
        yield good("no bridge between the GPUs redirects, no IOMMU translates")


def pcie(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Lanes always; the generation only under load, since an idle GPU lowers it."""
    if not has_gpus(facts):
        return []
    if isinstance(facts.bus, NotKnown):
        return [unknown(facts.bus)]
    busy = {} if isinstance(facts.smi, NotKnown) else {gpu.pci: gpu.busy for gpu in facts.smi.gpus}
    found = [said for gpu in facts.bus.gpus for said in _link(gpu, busy)]
    if found:
        return found
    told = [gpu for gpu in facts.bus.gpus if gpu.width is not UNKNOWN]
    if not told:
        return [unknown("no link tells its width, as in a virtual machine")]
    widths = listed(dict.fromkeys(f"x{gpu.width}" for gpu in told))
    idle = not any(_is_busy(gpu, busy) for gpu in told)
    return [good(f"{widths}, all lanes that the cards have" + ("; the generation shows under load" if idle else ""))]


def _link(gpu: PciGpu, busy: Mapping[str, object]) -> Iterator[Said]:
    if gpu.width is not UNKNOWN and gpu.width_max is not UNKNOWN and gpu.width < gpu.width_max:
        yield warning(
            f"GPU {gpu.address} runs on {gpu.width} PCIe lanes of its {gpu.width_max}",
            "move it to a slot with all lanes, seat it again, look at the riser and at the firmware's bifurcation",
        )
    if gpu.speed is not UNKNOWN and gpu.speed_max is not UNKNOWN and gpu.speed < gpu.speed_max and _is_busy(gpu, busy):
        yield warning(
            f"GPU {gpu.address} works at {gpu.speed:g} GT/s of its {gpu.speed_max:g}",
            "set the slot's generation in the firmware, look at the riser; older boards have no faster slot",
        )


def _is_busy(gpu: PciGpu, busy: Mapping[str, object]) -> bool:
    figure = busy.get(gpu.address.partition(".")[0], UNKNOWN)
    return isinstance(figure, float) and figure >= BUSY


def nccl(facts: HostFacts, config: Config) -> Iterable[Said]:
    """What NCCL and worker processes are told by hand, and adapters that NCCL would wait for."""
    if not has_gpus(facts):
        return []
    found = list(_environment(config))
    down = {}
    if not isinstance(facts.infiniband, NotKnown):
        down = {name: state for name, state in facts.infiniband.ports.items() if state != "ACTIVE"}
    for engine in config.engines:
        if down and set(spans(facts)) & set(engine.instances) and engine.env.get("NCCL_IB_DISABLE") != "1":
            told = listed(f"{name} is {state}" for name, state in down.items())
            found.append(
                warning(
                    f"{engine.name} spans GPUs, and NCCL may wait for InfiniBand: {told}",
                    f'[[engine]] {engine.name}: env = {{ NCCL_IB_DISABLE = "1" }}',
                )
            )
    if found:
        return found
    return [good("nothing in the engines' env is known to hang")] if spans(facts) else []


def _environment(config: Config) -> Iterator[Said]:
    for engine in config.engines:
        if engine.env.get("VLLM_WORKER_MULTIPROC_METHOD") == "fork":
            yield warning(
                f"{engine.name}: VLLM_WORKER_MULTIPROC_METHOD = fork hangs once CUDA was used before the fork",
                "remove it from env: engines start with spawn",
            )
        if engine.env.get("NCCL_P2P_DISABLE") == "0" or engine.env.get("NCCL_P2P_LEVEL") == "SYS":
            yield warning(
                f"{engine.name}: env forces P2P between GPUs, which hangs where the board cannot do it",
                f"remove it; {DEEP}",
            )
