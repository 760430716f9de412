"""The second factor, without pages: codes, recovery codes, limits, and who must have one (reference 4.9)."""

import pyotp
import pytest
import trio

from broker.accounts.one_time_codes import WrongCode, new_recovery_codes, step_of
from broker.accounts.second_factors import OfferOver
from broker.accounts.sessions import CodeWanted, Proof, Session, SignInAgain
from broker.errors import Conflict, PermissionDenied, TooManyAttempts, UserNotFound
from broker.services import Services
from config.limits import SECOND_FACTOR_DAY_MISSES, SECOND_FACTOR_MISSES
from config.settings import Accounts, Settings
from storage.keys import OrganizationKey
from tests.factories import ADA, BOB, World
from tests.fakes import FakeClock
from tests.protocols.http.accounts.browser import PASSWORD, give_password
from tests.rows import each_row

HERE = "192.0.2.1"
STEP_MS, MINUTE_MS = 30_000, 60_000
#: RFC 6238, appendix B, for SHA-1: the last six of the eight digits.
RFC_SECRET = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"


class Phone:
    """An authenticator app, and the recovery codes that its person keeps."""

    def __init__(self, secret: str, clock: FakeClock) -> None:
        self._generator = pyotp.TOTP(secret.replace(" ", ""))
        self._clock = clock
        self.recovery: tuple[str, ...] = ()

    def code(self, *, steps: int = 0) -> str:
        return self._generator.generate_otp(self._clock.now // STEP_MS + steps)

    def wrong_code(self) -> str:
        near = {self.code(steps=steps) for steps in range(-2, 3)}
        return next(code for code in map("{:06}".format, range(10)) if code not in near)


@pytest.fixture
async def session(services: Services, world: World) -> Session:
    await give_password(services, await services.accounts.users.find(ADA))
    return await services.accounts.sessions.sign_in("ada-example", PASSWORD, address=HERE)


async def enrolled(services: Services, session: Session, clock: FakeClock) -> Phone:
    """Set up a second factor; afterwards the app shows the code of another step."""
    factors = services.accounts.second_factors
    offer = factors.offer(session, issuer="Trunkline")
    phone = Phone(offer.secret, clock)
    phone.recovery = await factors.enrol(session, offer.sealed, phone.code())
    clock.advance(STEP_MS)
    return phone


@pytest.fixture
async def phone(services: Services, session: Session, fake_clock: FakeClock) -> Phone:
    return await enrolled(services, session, fake_clock)


async def right_password(services: Services) -> str:
    with pytest.raises(CodeWanted) as wanted:
        await services.accounts.sessions.sign_in("ada-example", PASSWORD, address=HERE)
    assert wanted.value.waiting not in repr(wanted.value)
    return wanted.value.waiting


async def finish(services: Services, waiting: str, code: str) -> Session:
    return await services.accounts.sessions.finish(waiting, code, address=HERE)


async def session_count(services: Services) -> int:
    row = await services.core.database.read(lambda tx: tx.connection.execute("SELECT count(*) AS n FROM session").one())
    assert row is not None
    return int(row["n"])


# Codes


@pytest.mark.parametrize(
    ("seconds", "code"),
    [(59, "287082"), (1_111_111_109, "081804"), (1_111_111_111, "050471"), (20_000_000_000, "353130")],
)
def test_codes_are_those_of_rfc_6238(seconds: int, code: str) -> None:
    assert step_of(RFC_SECRET, code, seconds * 1000) == seconds // 30


@pytest.mark.parametrize(("steps", "is_good"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
def test_a_clock_may_be_one_step_off(steps: int, is_good: bool) -> None:
    now_ms = 1_760_000_000_000
    code = pyotp.TOTP(RFC_SECRET).generate_otp(now_ms // STEP_MS + steps)
    assert (step_of(RFC_SECRET, code, now_ms) is not None) is is_good


@each_row("code", ["", "12345", "1234567", "abcdef", "١٢٣٤٥٦", "\udc80" * 6, "0" * 100_000])
def test_what_is_not_six_digits_is_wrong(code: str) -> None:
    assert step_of(RFC_SECRET, code, 59_000) is None


def test_a_recovery_code_has_80_random_bits() -> None:
    codes = [code for _ in range(20) for code in new_recovery_codes()]
    assert {len(code.replace("-", "")) for code in codes} == {16}
    assert len(set("".join(codes)) - {"-"}) == 32
    assert len(set(codes)) == len(codes)


# Signing in


@pytest.mark.both_engines
async def test_the_password_alone_makes_no_session(services: Services, phone: Phone) -> None:
    before = await session_count(services)
    waiting = await right_password(services)
    assert await session_count(services) == before
    assert await services.accounts.sessions.find(waiting) is None
    found = await finish(services, waiting, phone.code())
    assert await services.accounts.sessions.find(found.id) == found


async def test_a_code_is_good_once(services: Services, phone: Phone) -> None:
    waiting, code = await right_password(services), phone.code()
    await finish(services, waiting, code)
    for again in (waiting, await right_password(services)):
        with pytest.raises(WrongCode):
            await finish(services, again, code)


async def test_the_code_that_set_the_factor_up_is_used(
    services: Services, session: Session, fake_clock: FakeClock
) -> None:
    phone = await enrolled(services, session, fake_clock)
    with pytest.raises(WrongCode):
        await finish(services, await right_password(services), phone.code(steps=-1))


async def test_a_code_from_before_the_last_one_is_used_up(
    services: Services, phone: Phone, fake_clock: FakeClock
) -> None:
    fake_clock.advance(STEP_MS)
    earlier = phone.code(steps=-1)
    await finish(services, await right_password(services), phone.code())
    with pytest.raises(WrongCode):
        await finish(services, await right_password(services), earlier)


async def test_of_two_who_enter_one_code_at_once_one_gets_in(services: Services, phone: Phone) -> None:
    waiting, code = await right_password(services), phone.code()
    outcomes = []

    async def enter() -> None:
        try:
            await finish(services, waiting, code)
        except WrongCode:
            outcomes.append("refused")
        else:
            outcomes.append("in")

    async with trio.open_nursery() as both:
        both.start_soon(enter)
        both.start_soon(enter)
    assert sorted(outcomes) == ["in", "refused"]


@pytest.mark.both_engines
async def test_each_recovery_code_is_good_once(services: Services, phone: Phone) -> None:
    assert len(set(phone.recovery)) == 10
    for number, code in enumerate(phone.recovery):
        written = code.upper().replace("-", " ") if number % 2 else code
        await finish(services, await right_password(services), written)
        with pytest.raises(WrongCode):
            await finish(services, await right_password(services), code)
    standing = await services.accounts.second_factors.standing((await services.accounts.users.find(ADA)).key)
    assert standing.recovery_codes_left == 0


async def test_codes_of_somebody_else_are_wrong(services: Services, phone: Phone, fake_clock: FakeClock) -> None:
    await give_password(services, await services.accounts.users.find(BOB))
    bobs = await services.accounts.sessions.sign_in("bob-example", PASSWORD, address=HERE)
    other = await enrolled(services, bobs, fake_clock)
    for code in (other.code(), other.recovery[0]):
        with pytest.raises(WrongCode):
            await finish(services, await right_password(services), code)


async def test_the_store_has_neither_the_secret_nor_the_recovery_codes(services: Services, phone: Phone) -> None:
    def rows(table: str) -> str:
        return f"SELECT * FROM {table}"  # noqa: S608 - constants

    for table in ("second_factor", "recovery_code"):
        found = await services.core.database.read(
            lambda tx, table=table: [dict(row) for row in tx.connection.execute(rows(table))]  # type: ignore[misc]
        )
        assert found
        for secret in (phone._generator.secret, *phone.recovery, phone.recovery[0].replace("-", "")):
            assert secret not in repr(found)


# Limits


@pytest.mark.both_engines
async def test_five_wrong_codes_lock_for_fifteen_minutes(
    services: Services, phone: Phone, fake_clock: FakeClock
) -> None:
    """A right password in between changes nothing."""
    for _ in range(SECOND_FACTOR_MISSES):
        with pytest.raises(WrongCode):
            await finish(services, await right_password(services), phone.wrong_code())
    for code in (phone.code(), phone.recovery[0]):
        with pytest.raises(TooManyAttempts):
            await finish(services, await right_password(services), code)
    fake_clock.advance(15 * MINUTE_MS)
    await finish(services, await right_password(services), phone.code())


async def test_twenty_wrong_codes_in_a_day_lock_for_a_day(
    services: Services, phone: Phone, fake_clock: FakeClock
) -> None:
    for _ in range(SECOND_FACTOR_DAY_MISSES):
        with pytest.raises(WrongCode):
            await finish(services, await right_password(services), phone.wrong_code())
        fake_clock.advance(16 * MINUTE_MS)
    with pytest.raises(TooManyAttempts):
        await finish(services, await right_password(services), phone.code())
    fake_clock.advance(24 * 60 * MINUTE_MS)
    await finish(services, await right_password(services), phone.code())


async def test_the_password_counts_for_ten_minutes(services: Services, phone: Phone, fake_clock: FakeClock) -> None:
    waiting = await right_password(services)
    fake_clock.advance(10 * MINUTE_MS)
    with pytest.raises(SignInAgain):
        await finish(services, waiting, phone.code())


@each_row("waiting", ["", "x", "ü", "\udc80", "gAAAAAB" + "A" * 100])
async def test_what_did_not_come_from_here_is_not_waiting(services: Services, phone: Phone, waiting: str) -> None:
    with pytest.raises(SignInAgain):
        await finish(services, waiting, phone.code())
    assert not await services.accounts.sessions.is_waiting(waiting)


async def test_an_offered_secret_is_not_a_password(services: Services, session: Session, phone: Phone) -> None:
    """Both are sealed with one key; one does not stand for the other."""
    sealed = services.accounts.second_factors.offer(session, issuer="Trunkline").sealed
    with pytest.raises(SignInAgain):
        await finish(services, sealed, phone.code())
    with pytest.raises(OfferOver):
        await services.accounts.second_factors.enrol(session, await right_password(services), phone.code())


# Ways around it


async def test_a_new_password_does_not_remove_it(services: Services, phone: Phone) -> None:
    waiting = await right_password(services)
    ada = await services.accounts.users.find(ADA)
    await give_password(services, ada, "another horse battery")
    with pytest.raises(SignInAgain):
        await finish(services, waiting, phone.code())
    with pytest.raises(CodeWanted):
        await services.accounts.sessions.sign_in("ada-example", "another horse battery", address=HERE)


@pytest.mark.parametrize("proof", [Proof.PASSWORD, Proof.PROVIDER])
async def test_no_session_begins_without_the_code(services: Services, phone: Phone, proof: Proof) -> None:
    """Whoever signs a person in calls `begin`: sign-up, invitations and identity providers, too."""
    with pytest.raises(CodeWanted):
        await services.accounts.sessions.begin(await services.accounts.users.find(ADA), proof=proof)


# Setting up and removing


async def test_setting_it_up_ends_the_other_sessions(
    services: Services, session: Session, fake_clock: FakeClock
) -> None:
    other = await services.accounts.sessions.sign_in("ada-example", PASSWORD, address=HERE)
    await enrolled(services, session, fake_clock)
    assert await services.accounts.sessions.find(other.id) is None
    assert await services.accounts.sessions.find(session.id) == session


async def test_a_second_one_is_not_set_up(
    services: Services, session: Session, phone: Phone, fake_clock: FakeClock
) -> None:
    factors = services.accounts.second_factors
    offer = factors.offer(session, issuer="Trunkline")
    with pytest.raises(Conflict):
        await factors.enrol(session, offer.sealed, Phone(offer.secret, fake_clock).code())


async def test_a_wrong_first_code_sets_nothing_up(services: Services, session: Session, fake_clock: FakeClock) -> None:
    factors = services.accounts.second_factors
    offer = factors.offer(session, issuer="Trunkline")
    with pytest.raises(WrongCode):
        await factors.enrol(session, offer.sealed, Phone(offer.secret, fake_clock).wrong_code())
    assert factors.offer_again(session, offer.sealed, issuer="Trunkline").secret == offer.secret
    await services.accounts.sessions.sign_in("ada-example", PASSWORD, address=HERE)


async def test_an_offer_is_for_one_person(services: Services, session: Session, fake_clock: FakeClock) -> None:
    factors = services.accounts.second_factors
    bobs = await services.accounts.sessions.begin(await services.accounts.users.find(BOB))
    offer = factors.offer(bobs, issuer="Trunkline")
    with pytest.raises(OfferOver):
        await factors.enrol(session, offer.sealed, Phone(offer.secret, fake_clock).code())


async def test_who_signed_in_long_ago_changes_nothing(
    services: Services, session: Session, phone: Phone, fake_clock: FakeClock
) -> None:
    factors = services.accounts.second_factors
    fake_clock.advance(10 * MINUTE_MS)
    with pytest.raises(PermissionDenied):
        await factors.remove(session)
    offer = factors.offer(session, issuer="Trunkline")
    with pytest.raises(PermissionDenied):
        await factors.enrol(session, offer.sealed, Phone(offer.secret, fake_clock).code())


@pytest.mark.both_engines
async def test_removing_it_removes_the_recovery_codes(services: Services, session: Session, phone: Phone) -> None:
    await services.accounts.second_factors.remove(session)
    await services.accounts.sessions.sign_in("ada-example", PASSWORD, address=HERE)
    standing = await services.accounts.second_factors.standing(session.user.key)
    assert (standing.created_on, standing.recovery_codes_left) == (None, 0)


async def test_the_operator_resets_it(services: Services, session: Session, phone: Phone) -> None:
    assert await services.accounts.second_factors.reset("ADA@example.org")
    assert await services.accounts.sessions.find(session.id) is None
    await services.accounts.sessions.sign_in("ada-example", PASSWORD, address=HERE)
    assert not await services.accounts.second_factors.reset("ada-example")
    with pytest.raises(UserNotFound):
        await services.accounts.second_factors.reset("nobody@example.org")


# Required of administrators


class TestWhereAdministratorsNeedOne:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return Settings(
            state_dir=settings.state_dir, limits=settings.limits, accounts=Accounts(second_factor="administrators")
        )

    @pytest.fixture
    async def session(self, services: Services, world: World) -> Session:
        """Ada administrates an organization from now on."""
        await give_password(services, await services.accounts.users.find(ADA))
        await services.core.database.write(
            lambda tx: tx.accounts.set_role(OrganizationKey(1), world.ada, "administrator")
        )
        return await services.accounts.sessions.sign_in("ada-example", PASSWORD, address=HERE)

    @pytest.mark.both_engines
    async def test_the_session_is_good_for_setting_it_up_only(
        self, services: Services, session: Session, fake_clock: FakeClock
    ) -> None:
        assert session.must_enrol
        assert await services.accounts.sessions.find(session.id) is None
        assert await services.accounts.sessions.find(session.id, to_enrol=True) == session
        await enrolled(services, session, fake_clock)
        found = await services.accounts.sessions.find(session.id)
        assert found is not None
        assert not found.must_enrol

    @pytest.mark.both_engines
    async def test_a_provider_has_its_own(self, services: Services, session: Session) -> None:
        begun = await services.accounts.sessions.begin(session.user, proof=Proof.PROVIDER)
        assert await services.accounts.sessions.find(begun.id) == begun

    @pytest.fixture
    async def bobs(self, services: Services, session: Session) -> Session:
        """Of somebody who administrates nothing, unlike Ada."""
        assert session.must_enrol
        await give_password(services, await services.accounts.users.find(BOB))
        return await services.accounts.sessions.sign_in("bob-example", PASSWORD, address=HERE)

    async def test_others_need_none(self, services: Services, bobs: Session) -> None:
        assert await services.accounts.sessions.find(bobs.id) == bobs

    async def test_it_cannot_be_removed(self, services: Services, session: Session, fake_clock: FakeClock) -> None:
        await enrolled(services, session, fake_clock)
        with pytest.raises(PermissionDenied):
            await services.accounts.second_factors.remove(session)

    async def test_who_had_one_before_and_turned_it_off_needs_one(
        self, services: Services, world: World, bobs: Session, fake_clock: FakeClock
    ) -> None:
        await enrolled(services, bobs, fake_clock)
        await services.accounts.second_factors.remove(bobs)
        await services.core.database.write(
            lambda tx: tx.accounts.set_role(OrganizationKey(1), world.bob, "administrator")
        )
        assert await services.accounts.sessions.find(bobs.id) is None

    async def test_a_session_of_before_ends_when_its_person_becomes_administrator(
        self, services: Services, bobs: Session
    ) -> None:
        await services.core.database.write(
            lambda tx: tx.accounts.set_role(OrganizationKey(1), bobs.user.key, "administrator")
        )
        assert await services.accounts.sessions.find(bobs.id) is None
