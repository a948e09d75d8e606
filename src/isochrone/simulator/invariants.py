"""What must hold in every run, checked from outside while it runs: by what the driver sees, and public views.

| invariant | where |
|---|---|
| time never goes back, in events and in records | `tell`, `_check_record` |
| each request ends once, with one record; nothing is sent after its end | `obey`, `_check_record` |
| late news of an attempt that is over changes nothing | `_late_news` |
| tokens reach the client once, in order, none missing; what is cut short does not look whole | `_check_record` |
| after its first byte a request goes on or ends; it is not begun anew, nor shed | `_check_dispatch`, `answers.py` |
| usage is counted once, and quotas come out even | `_check_record`, `check_over` |
| queues, attempts, records and retries stay within their limits | `_check_limits`, `_check_dispatch` |
| the ledger holds what is in flight, and returns to zero | `_check_limits`, `check_over` |
| nothing goes where it may not: draining, known dead, cordoned, tried before, over the KV limit | `_check_place` |
| an idle ready instance is never refused to a request that fits it | `_check_idle` |
| the same events give the same commands | `tests/simulation/test_swarm.py` |
"""

import random
from collections import Counter
from collections.abc import Callable

from isochrone.access.quotas import Quotas, used_tokens
from isochrone.access.tenants import Tenant, Tenants
from isochrone.nouns.commands import Command, Dispatch, Fail, Record, Refuse
from isochrone.nouns.decision import Decision
from isochrone.nouns.events import Arrived, Ended, Event, FirstToken, Outcome, Progress
from isochrone.nouns.instance import State
from isochrone.nouns.instant import SECOND, Instant
from isochrone.scheduling.policies import make
from isochrone.scheduling.reservation import LARGE_RATIO
from isochrone.simulator.plan import Plan, Run
from isochrone.simulator.relayed import Act, Asked, Client, Relayed
from isochrone.simulator.run import START
from isochrone.simulator.workload import Workload

TAKES = frozenset({State.READY.value, State.SUSPECT.value, State.PROBING.value})
PLENTY = 10**9
"""Tokens a minute that a tenant of these runs may use: nobody is turned away, all is counted."""
BESIDE_BUDGET = frozenset({Outcome.ABORTED, Outcome.UNREACHABLE, Outcome.LOST})
"""What the next try of costs no budget: it is paid for already, nothing was computed, or the reserve may pay."""
WAITS_FOR_NOTHING = frozenset({"queue_full", "queue_timeout", "slo_unattainable", "no_instance_ready"})
"""Refusals that an idle instance makes wrong."""

Note = Callable[[Instant, Event | Command], None]


class Broken(AssertionError):
    """An invariant that does not hold. `about`: the request, where it is about one."""

    def __init__(self, what: str, about: str = "") -> None:
        super().__init__(what)
        self.about = about


class Watched(Relayed):
    """A simulation with checkers; `note` is given every event and command."""

    def __init__(
        self,
        plan: Plan,
        workload: Workload,
        clients: list[Client],
        acts: list[Act],
        seed: int,
        note: Note | None = None,
    ) -> None:
        super().__init__(plan, workload, clients, acts, seed)
        self._note = note
        self._last_now = self.now
        self._retry_tokens = 0
        """What tries after the first have cost."""
        self._first_tokens = 0
        """What first tries have cost: a share of it may be spent on retries."""
        self._batch: list[Dispatch] = []
        """What the event being handled has sent."""
        names = {client.tenant for client in clients}
        self._quotas = Quotas(Tenants({name: Tenant(name=name, tokens_per_minute=PLENTY) for name in names}))
        self._used: Counter[str] = Counter()

    def run(self) -> Run:
        run = super().run()
        self.check_over()
        return run

    def tell(self, event: Event) -> None:
        _check(self.now >= self._last_now, "time went back")
        self._last_now = self.now
        if self._note is not None:
            self._note(self.now, event)
        if isinstance(event, Arrived):
            self._set_aside(event)
        self._batch.clear()
        super().tell(event)
        self._check_kv()
        if isinstance(event, Ended):
            self._late_news(event)
        self._check_limits()

    def obey(self, command: object) -> None:
        if self._note is not None:
            self._note(self.now, command)  # type: ignore[arg-type]  # the driver's word for a command is object
        if isinstance(command, Dispatch):
            self._check_dispatch(command)
        elif isinstance(command, Refuse | Fail):
            self._check_refusal(command)
        elif isinstance(command, Record):
            self._check_record(command.decision)
        super().obey(command)

    def wrong(self, what: str, request: str) -> None:
        raise Broken(f"request {request}: {what}", request)

    def _set_aside(self, event: Arrived) -> None:
        """Its tenant's quota, as at the gateway's door."""
        request = event.request
        account = self._quotas.account(request.tenant, START)
        prompt_tokens = self.calls[int(request.id)].prompt_tokens
        refused = self._quotas.admit(START, account, request.id, prompt_tokens, request.max_tokens or 0)
        _check(refused is None, "a tenant with plenty was turned away", request.id)

    def _late_news(self, event: Ended) -> None:
        """Now and then the same is told again, when all is over."""
        if event.attempt % 3 or event.attempt in self.open:
            return
        for late in (event, Progress(event.attempt, 7), FirstToken(event.attempt)):
            _check(not self.door.handle(self.now, late), f"late news of attempt {event.attempt} had an effect")

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check_dispatch(self, command: Dispatch) -> None:
        request, instance = command.request, command.instance
        asked = self.asked[request]
        _check(not asked.over, "dispatched after its end", request)
        _check(asked.open is None, "dispatched twice", request)
        _check(not asked.gone, "dispatched after its client had left", request)
        _check(instance not in asked.attempts, f"sent to {instance} again", request)
        _check(len(asked.attempts) < self.now_settings.attempts_max, "more attempts than attempts_max", request)
        self._check_place(request, instance)
        if command.continues:
            may = asked.last is not None and asked.last.resumable and self.now_settings.resume
            _check(may, "continued, and may not be", request)
        self._count_tokens(command, asked)
        self._batch.append(command)

    def _check_place(self, request: str, instance: str) -> None:
        views = {view.id: view for view in self.door.instances()}
        view = views.pop(instance)
        if view.state == State.EJECTED.value:  # fail open: only where there is nobody else
            others = {other.state for other in views.values() if other.weight > 0}
            _check(not TAKES & others - {State.PROBING.value}, f"sent to an ejected one, others are {others}", request)
        else:
            _check(view.state in TAKES, f"sent to an instance that is {view.state}", request)
        _check(view.weight > 0, "sent to an instance of weight 0", request)
        _check(not self.hosts[instance].withdrawn, f"sent to {instance}, which was withdrawn", request)

    def _check_kv(self) -> None:
        """Where requests may wait, none goes to an instance over its hard limit while others run there; a large prompt
        that had one kept for it goes in the end."""
        settings = self.now_settings
        if not self._batch or "kv-limit" in settings.without or not self._waits():
            return
        views = {view.id: view for view in self.door.instances()}
        for place, command in enumerate(self._batch):
            view = views[command.instance]
            here = [one for one in self._batch[place:] if one.instance == view.id]
            capacity, usage, others = view.kv_capacity_tokens, view.kv_usage_ratio, view.in_flight - len(here)
            large = self._tokens(command) >= LARGE_RATIO * (capacity or 0)
            if usage is None or capacity is None or large or others + view.foreign_running <= 0:
                continue
            before = usage - sum(map(self._tokens, here)) / capacity
            _check(before <= settings.kv_hard_ratio, f"{view.id} was at {before:.3f} of its KV", command.request)

    def _tokens(self, command: Dispatch) -> int:
        """Of its prompt, with the part of the answer that is there."""
        asked = self.asked[command.request]
        return asked.prompt_tokens + (asked.answer.before if asked.answer is not None else 0)

    def _waits(self) -> bool:
        """Late binding acts."""
        settings = self.now_settings
        if not settings.hold or "hold" in settings.without or not make(settings.policy, random.Random(0)).holds:
            return False
        return all(queue.warm and queue.members > 1 for queue in self.door.queues())

    def _count_tokens(self, command: Dispatch, asked: Asked) -> None:
        """What retries cost, against what they may."""
        if command.ordinal == 1:
            self._first_tokens += asked.prompt_tokens
        elif asked.last is not None and asked.last.outcome not in BESIDE_BUDGET:
            self._retry_tokens += self._tokens(command)
        settings = self.now_settings
        may = settings.retry_tokens_max + settings.retry_ratio * self._first_tokens
        may += settings.retry_tokens_per_s * (self.now / SECOND)
        _check(
            self._retry_tokens <= may, f"retries of {self._retry_tokens} tokens, the budget is {may}", command.request
        )

    def _check_refusal(self, command: Refuse | Fail) -> None:
        request = command.request
        asked = self.asked.get(request)
        _check(asked is not None, "was answered and had never come", request)
        assert asked is not None
        _check(not asked.over, "was answered twice", request)
        code = command.error.code if command.error is not None else ""
        _check(not asked.delivered or code != "slo_unattainable", "shed in mid-stream", request)
        if isinstance(command, Refuse):
            _check(not asked.attempts, f"refused after it had been sent, with {command.error.code}", request)
            if command.error.code in WAITS_FOR_NOTHING:
                self._check_idle([request], f"refused with {command.error.code}")

    def _check_record(self, decision: Decision) -> None:
        request = decision.request
        asked, call = self.asked[request], self.calls[int(decision.request)]
        _check(not asked.over, "was recorded twice", request)
        asked.over = True
        done, answer = decision.outcome == "done", asked.answer
        _check(asked.open is None, "is over while an attempt runs", request)
        _check([one.instance for one in decision.tries] == asked.attempts, "its record leaves out an attempt", request)
        times = [decision.arrived_at]
        for one in decision.tries:
            times += [one.dispatched_at, one.ended_at or -1]
        times.append(decision.ended_at or -1)
        _check(times == sorted(times), f"its times go back: {times}", request)
        if answer is not None:
            fault = answer.fault(done)
            _check(not fault, fault, request)
        if done:
            counted = (decision.prompt_tokens, decision.output_tokens)
            _check(counted == (call.prompt_tokens, call.output_tokens), f"usage came out as {counted}", request)
        _check((decision.output_tokens or 0) <= call.output_tokens, "more output than there is", request)
        self._quotas.settle(decision)
        self._used[decision.tenant] += used_tokens(decision) if decision.tries else 0

    def _check_limits(self) -> None:
        """After every event."""
        cluster, settings = self.door, self.now_settings
        queues = cluster.queues()
        held = sum(queue.depth for queue in queues)
        _check(cluster.in_flight() == len(self.open), f"{cluster.in_flight()} in flight are {len(self.open)}")
        if held:
            waiting = [name for name, asked in self.asked.items() if not asked.over and asked.open is None]
            _check(held == len(waiting), f"{held} are held, {len(waiting)} wait")
            fresh = sum(not self.asked[name].attempts for name in waiting)  # who has lost its instance always comes in
            _check(fresh <= settings.queue_requests_max, f"{fresh} requests are held that were never sent")
            self._check_idle(waiting, "held")
        elif self.now % 7 == 0:
            for view in cluster.instances():
                _check(view.in_flight == self.on[view.id], f"{view.id}: {view.in_flight} are {self.on[view.id]}")

    def _check_idle(self, requests: list[str], what: str) -> None:
        """No request waits, or is turned away, while an instance that could take it does nothing."""
        idle = [
            view
            for view in self.door.instances()
            if view.state == State.READY.value and not view.in_flight and not view.foreign_running and view.weight > 0
        ]
        if not idle:
            return
        smallest = min(view.kv_capacity_tokens or 0 for view in self.door.instances())
        waiting = [name for name, asked in self.asked.items() if not asked.over and asked.open is None]
        if any(self.calls[int(name)].prompt_tokens * 2 > LARGE_RATIO * smallest for name in waiting):
            return  # one of them may have had the instance kept for it
        for request in requests:
            free = [view.id for view in idle if view.id not in self.asked[request].attempts]
            _check(not free, f"{what} while {free} are idle", request)

    def check_over(self) -> None:
        """What must hold once all calls are over."""
        _check(len(self.asked) == len(self.calls), "a call was never made")
        _check(all(asked.over for asked in self.asked.values()), "a call left no record")
        _check(not self.open, f"attempts never ended: {sorted(self.open)[:5]}")
        _check(self.door.in_flight() == 0, "the cluster thinks that something runs")
        _check(self.door.next_deadline() is None, "the cluster waits for something")
        _check(all(queue.depth == 0 for queue in self.door.queues()), "a queue is not empty")
        _check(len(self.door.decisions(PLENTY)) <= self.now_settings.decisions_max, "too many records are kept")
        for view in self.door.instances():
            left = (view.in_flight, view.context_tokens, view.kv_tokens, view.owed_output_tokens)
            more = (view.pending_prefill_tokens, view.pending_prefill_s)
            _check((*left, *more) == (0,) * 6, f"{view.id}: the ledger has not returned to zero: {left} {more}")
        for host in self.hosts.values():
            _check(not host.sent, f"{host.id}: attempts are left on it")
            _check(host.engine.pool.used == 0, f"{host.id}: KV blocks are left on it")
        _check(len(self._quotas) == 0, "a quota is still set aside")
        for name, account in self._quotas.accounts.items():
            assert account.tokens is not None
            _check((account.running, account.reserved_tokens) == (0, 0), f"{name}: something is still set aside")
            used = PLENTY - account.tokens.remaining
            _check(used == self._used[name], f"{name} was charged {used} tokens for {self._used[name]}")


def _check(holds: bool, what: str, about: str = "") -> None:
    if not holds:
        raise Broken(f"request {about}: {what}" if about else what, about)
