"""What tenants may use, tokens a minute and requests at once: who is refused, and what is charged."""

import hmac
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from operator import attrgetter

from control_plane.engine.accounts import Account, Charge, Progress, TokenBucket, choice_identity, identity_of, num_given_tokens
from control_plane.engine.ports import Failure, GenerationRequest, Quota, RequestFailed, Tenant, TenantUsage
from control_plane.engine.request import LiveChoice, LiveRequest
from control_plane.engine.stats import EngineStats

#: When to come back for a place among the requests at once: nobody knows when one of them ends.
_PLACE_SECONDS = 1.0

#: For so long, and so many of them, what has ended is known to its resume: the client may have lost the last of it.
_KNOWN_SECONDS, _MAX_KNOWN = 120.0, 10_000
_MAX_KNOWN_TOKENS = 4_000_000  # 16 MB

#: For so long after the first request resumes that nobody knows are believed: what they resume was lost with the engine before this one.
_BELIEVED_SECONDS = 120.0

#: So many accounts are kept, whether they are in use or not.
_FEW_ACCOUNTS = 64

_ACCOUNT_OF = attrgetter("request.account")


class Quotas:
    """Refuses requests at their beginning; nothing that runs is cut off. What is nobody's is not looked at.

    No token is charged twice. A resume of what is live or has just ended is charged what that was not. If it can bring nothing that was not
    taken in before, it needs no tokens to be left, and may take the place of one more request for each that is allowed, as newcomers may
    have taken its own. One that brings tokens which were not generated here is no such resume: they are charged like a prompt.
    """

    def __init__(self, stats: EngineStats, clock: Callable[[], float]) -> None:
        self._stats = stats
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        self._max_accounts = _FEW_ACCOUNTS  # from which on those that are as if they were new are forgotten
        self._ended: OrderedDict[str, Charge] = OrderedDict()  # by request, the earliest first
        self._num_kept_tokens = 0  # by those
        self._repeated: dict[LiveChoice, int] = {}  # tokens to come that were charged before
        self._first_time: float | None = None  # of a request

    def refusal(self, spec: GenerationRequest) -> RequestFailed | None:
        """Why a request may not begin now."""
        if spec.tenant is None or not spec.choices:
            return None
        now, account = self._clock(), self._account(spec, spec.tenant)
        known = self._known(spec)
        goes_on = known.covers(spec) if known else self._is_believed(spec, account, now)
        num_tokens = len(spec.prompt_token_ids) if known else num_given_tokens(spec)
        return self._lacks_place(spec, account, goes_on) or (None if goes_on else self._lacks_tokens(spec, account, num_tokens, now))

    def usage(self, spec: GenerationRequest) -> TenantUsage | None:
        """What the tenant of a request uses now; None where it has no quota."""
        account = self._accounts.get(spec.tenant.name) if spec.tenant else None
        if account is None or account.tenant.quota == Quota():
            return None
        return TenantUsage(account.num_live, math.ceil(account.bucket.used(self._clock())))

    def open(self, live: LiveRequest) -> None:
        """Charge for a request that begins, unless it has nothing to run."""
        spec = live.spec
        if spec.tenant is None or not spec.choices:
            return
        now, account, known = self._clock(), self._account(spec, spec.tenant), self._known(spec)
        self._forget_ended(spec.request_id)
        charge = Charge(account, spec.resume_key, identity_of(spec), spec.max_tokens)
        if known:
            charge.num_given = known.num_given or len(spec.prompt_token_ids)
            charge.num_new = charge.num_given - known.num_given
            charge.max_tokens = max(spec.max_tokens, known.max_tokens)
            charge.progress = known.progress
            self._note_repeated(live, charge)
        else:
            charge.num_given = num_given_tokens(spec)
            charge.num_new = 0 if spec.was_accepted else charge.num_given
        account.bucket.use(charge.num_new, now)
        account.num_live += 1
        live.account, live.charge = account, charge
        usage = self._stats.observed.usage_of(account.tenant)
        usage.requests += 1
        usage.prompt_tokens += 0 if spec.takes_over or known else len(spec.prompt_token_ids)

    def count_tokens(self, choices: Sequence[LiveChoice]) -> None:
        """Charge the next token of each of some choices."""
        if not self._accounts:
            return
        now, counts = self._clock(), Counter(map(_ACCOUNT_OF, choices))
        counts.pop(None, None)
        for account, num_tokens in counts.items():
            self._stats.observed.usage_of(account.tenant).generation_tokens += num_tokens
        if self._repeated:
            counts.subtract([choice.request.account for choice in choices if self._repeats(choice)])
        for account, num_tokens in counts.items():
            account.bucket.use(num_tokens, now)

    def close_choice(self, choice: LiveChoice) -> None:
        """Note how far a choice came."""
        if charge := choice.request.charge:
            self._repeated.pop(choice, None)
            num_brought = 0 if choice.request.spec.was_accepted else choice.num_resumed_tokens  # front ends invent none
            progress = charge.progress.setdefault(choice_identity(choice.spec), Progress(num_brought))
            if choice.sequence.num_admissions:  # what it brought may be given back otherwise
                progress.note(choice.sequence.token_ids[choice.sequence.num_prompt_tokens :])

    def close(self, live: LiveRequest) -> None:
        """Note the end of a request, whatever kind of end. One that never ran gets the tokens of its prompt back."""
        if (charge := live.charge) is None:
            return
        now, account = self._clock(), charge.account
        for choice in live.open:
            self.close_choice(choice)
        if live.never_ran:
            account.bucket.give_back(charge.num_new, now)
            charge.num_given -= charge.num_new
        account.num_live -= 1
        assert account.num_live >= 0, f"{account.tenant.name} has {account.num_live} requests"
        self._stats.observed.usage_of(account.tenant).ended += 1
        charge.end_time = now
        self._ended[live.spec.request_id] = charge
        self._num_kept_tokens += charge.num_kept_tokens
        while self._is_too_much_known(now):
            self._forget_ended(next(iter(self._ended)))

    # Accounts

    def _account(self, spec: GenerationRequest, tenant: Tenant) -> Account:
        """The account of a tenant, with the limits of the newest request."""
        now = self._clock()
        if self._first_time is None:
            self._first_time = now
        account = self._accounts.get(tenant.name)
        if account is None:
            self._forget_unused(now)
            account = Account(tenant, spec.arrival_time, TokenBucket(tenant.quota.tokens_per_minute, now))
            self._accounts[tenant.name] = account
        account.tell(tenant, spec.arrival_time, now)
        return account

    def _forget_unused(self, now: float) -> None:
        if len(self._accounts) >= self._max_accounts:
            used = {name: account for name, account in self._accounts.items() if account.num_live or account.bucket.used(now)}
            self._accounts, self._max_accounts = used, max(_FEW_ACCOUNTS, 2 * len(used))

    # Resumes

    def _is_too_much_known(self, now: float) -> bool:
        if len(self._ended) > _MAX_KNOWN or self._num_kept_tokens > _MAX_KNOWN_TOKENS:
            return True
        return bool(self._ended) and now - next(iter(self._ended.values())).end_time > _KNOWN_SECONDS

    def _forget_ended(self, request_id: str) -> None:
        if charge := self._ended.pop(request_id, None):
            self._num_kept_tokens -= charge.num_kept_tokens

    def _known(self, spec: GenerationRequest) -> Charge | None:
        """What was charged for the request that this one resumes, or is: a front end may not have heard that it was taken in."""
        known = self._ended.get(spec.request_id)
        if known is None or not hmac.compare_digest(known.resume_key, spec.resume_key):
            return None
        return known if known.identity == identity_of(spec) and known.has_told(spec) else None

    def _is_believed(self, spec: GenerationRequest, account: Account, now: float) -> bool:
        """Whether a resume that is not known is taken for one; who invents them gets no more than two minutes' tokens by that."""
        if not spec.takes_over or self._first_time is None or now - self._first_time >= _BELIEVED_SECONDS:
            return False
        limit = account.tenant.quota.tokens_per_minute
        return limit is None or account.bucket.used(now) < 2 * limit

    def _note_repeated(self, live: LiveRequest, charge: Charge) -> None:
        for choice in live.open:
            progress = charge.progress.get(choice_identity(choice.spec))
            if progress and progress.num_generated > choice.num_resumed_tokens:
                self._repeated[choice] = progress.num_generated - choice.num_resumed_tokens

    def _repeats(self, choice: LiveChoice) -> bool:
        """Whether the next token of a choice was charged before."""
        num_tokens = self._repeated.pop(choice, 0)
        if num_tokens > 1:
            self._repeated[choice] = num_tokens - 1
        return num_tokens > 0

    # Refusals

    def _lacks_place(self, spec: GenerationRequest, account: Account, goes_on: bool) -> RequestFailed | None:
        limit = account.tenant.quota.max_requests
        if limit is None or account.num_live < (2 * limit if goes_on else limit):
            return None
        usage = f"requests at once: {account.num_live} run or wait, limit {limit}"
        return self._refuse(spec, account, "requests", usage, _PLACE_SECONDS)

    def _lacks_tokens(self, spec: GenerationRequest, account: Account, num_tokens: int, now: float) -> RequestFailed | None:
        limit = account.tenant.quota.tokens_per_minute
        if limit is None:
            return None
        prompt = "the prompt" if num_tokens == len(spec.prompt_token_ids) else "the prompt, with what is resumed,"
        if num_tokens > limit:
            lengths = f"{prompt} has {num_tokens} tokens, and key {account.tenant.name!r} may use {limit} a minute"
            return RequestFailed(spec.request_id, Failure.INVALID_ARGUMENT, f"{lengths}: send a shorter one")
        seconds = account.bucket.seconds_until(num_tokens, now)
        if not seconds:
            return None
        usage = f"tokens a minute: {account.bucket.used(now):.0f} are used, {prompt} has {num_tokens}, limit {limit}"
        return self._refuse(spec, account, "tokens", usage, seconds)

    def _refuse(self, spec: GenerationRequest, account: Account, quota: str, usage: str, seconds: float) -> RequestFailed:
        self._stats.observed.usage_of(account.tenant).refusals[quota] += 1
        message = f"key {account.tenant.name!r} is over its quota of {usage}; retry in {seconds:.1f} s"
        return RequestFailed(spec.request_id, Failure.OVER_QUOTA, message, seconds)
