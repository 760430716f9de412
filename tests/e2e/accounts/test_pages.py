"""The pages in Chromium."""

from urllib.parse import urlsplit

from config.limits import PASSWORD_MISSES
from tests.daemon import ADA_EMAIL
from tests.e2e.accounts.callback import query_of
from tests.e2e.accounts.person import NAME_LABEL, Person
from tests.e2e.accounts.world import MOBILE, PAGE, PASSWORD, THEA_EMAIL, WEB, WEB_NAME, Site
from tests.rows import each_row

WRONG = "The e-mail address or the password is wrong."
CHALLENGE = {"code_challenge": "c" * 43, "code_challenge_method": "S256"}


def test_a_wrong_password_is_said_and_the_right_one_goes_on(person: Person, site: Site) -> None:
    """The consent page names the application and what it asks for. The cookies are for this site only."""
    person.asked_by(WEB)
    assert WEB_NAME in person.browser.text
    form = person.browser.cookies()
    person.sign_in(password="wrong horse")
    assert person.browser.alert == WRONG
    assert person.browser.value(NAME_LABEL) == ADA_EMAIL
    person.browser.focuses("Password")
    person.sign_in()
    for text in (WEB_NAME, "Sunshade Works", "Brightlight Lamp", "Brightlight Weather Station", ADA_EMAIL):
        assert text in person.browser.text
    session = person.browser.cookies()
    assert query_of(person.agree()).keys() == {"code", "state"}
    assert (set(form), set(session)) == ({"trunkline_form"}, {"trunkline_session"})
    for cookie in (*form.values(), *session.values()):
        assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Lax")
        assert cookie["domain"] == "127.0.0.1"  # no other host
    # The session is the console's, too.
    assert (form["trunkline_form"]["path"], session["trunkline_session"]["path"]) == ("/accounts", "/")
    assert form["trunkline_form"]["session"]
    assert not session["trunkline_session"]["session"]


def test_denying_redirects_with_access_denied(person: Person, site: Site) -> None:
    person.asked_by(WEB)
    person.sign_in()
    person.browser.press("Deny")
    assert query_of(site.callback.take()) == {"error": "access_denied", "state": "s 1&é"}


def test_a_person_who_is_signed_in_is_only_asked_again_with_prompt_login(person: Person, site: Site) -> None:
    """Or at /signin. An application that asks for nothing is answered without a consent page."""
    person.asked_by(MOBILE, **CHALLENGE)
    person.sign_in()
    first = query_of(site.callback.take())["code"]
    person.asked_by(MOBILE, **CHALLENGE)
    second = query_of(site.callback.take())["code"]
    person.asked_by(MOBILE, prompt="login", **CHALLENGE)
    person.sign_in()
    assert len({first, second, query_of(site.callback.take())["code"]}) == 3
    person.asked_by(MOBILE, path="signin", **CHALLENGE)
    assert person.browser.heading == "Sign in"


def test_a_stranger_opens_an_account_and_goes_on(person: Person, site: Site) -> None:
    person.asked_by(WEB)
    person.browser.follow("Create an account")
    person.browser.fill("E-mail address", ADA_EMAIL)
    person.browser.fill("Your name optional", "Nia New")
    person.browser.fill("Password", PASSWORD)
    person.browser.press("Create the account")
    assert "already registered" in person.browser.alert  # Ada's address
    person.browser.fill("E-mail address", "nia@example.org")
    person.browser.fill("Password", PASSWORD)
    person.browser.press("Create the account")
    assert "nia@example.org" in person.browser.text
    assert query_of(person.agree())["state"] == "s 1&é"


def test_wrong_passwords_are_throttled_and_with_them_the_right_one(person: Person) -> None:
    person.asked_by(WEB)
    for _ in range(PASSWORD_MISSES):
        person.sign_in(THEA_EMAIL, "wrong horse")
        assert person.browser.alert == WRONG
    person.sign_in(THEA_EMAIL)
    assert person.browser.heading == "Sign in"
    assert "Too many" in person.browser.alert


def test_after_signing_out_the_back_button_does_not_show_what_was_asked(person: Person, site: Site) -> None:
    person.asked_by(WEB)
    person.sign_in()
    assert ADA_EMAIL in person.browser.text
    person.browser.open(site.callback.url("web"))  # Chromium now keeps the former page in its cache
    site.callback.take()
    person.visit("logout", redirect_uri=site.callback.url("web"), state="bye")
    assert query_of(site.callback.take()) == {"status": "logout", "state": "bye"}
    assert "trunkline_session" not in person.browser.cookies()
    person.browser.back()
    person.browser.back()
    assert ADA_EMAIL not in person.browser.text
    assert person.browser.heading == "Sign in"


def test_an_agreement_is_asked_for_again_with_prompt_consent_and_after_a_revocation(person: Person, site: Site) -> None:
    person.asked_by(WEB)
    person.sign_in()
    person.agree()
    person.asked_by(WEB)
    assert query_of(site.callback.take()).keys() == {"code", "state"}
    person.asked_by(WEB, prompt="consent")
    person.agree()
    site.forget_agreements()
    person.asked_by(WEB)
    person.agree()


def test_the_consent_page_can_be_reloaded_and_gone_back_to(person: Person, site: Site) -> None:
    """Going back does not post the form with the password again."""
    person.asked_by(WEB, prompt="login")
    person.sign_in()
    assert person.browser.heading == "Allow access?"
    person.browser.reload()
    person.browser.open(site.callback.url("elsewhere"))
    site.callback.take()
    person.browser.back()
    assert query_of(person.agree()).keys() == {"code", "state"}


def test_after_signing_out_a_form_of_the_old_session_is_refused(person: Person, site: Site) -> None:
    person.asked_by(WEB)
    person.sign_in()
    person.in_another_window("logout", redirect_uri=site.callback.url("web"))
    site.callback.take()
    person.browser.press("Allow")
    assert person.browser.heading == "Sign in"


@each_row(
    ("path", "query", "text"),
    [
        ("authorize", {"client_id": "nobody", "response_type": "code"}, "client_id"),
        ("authorize", {"client_id": WEB, "redirect_uri": "https://evil.example.net/"}, "redirect_uri"),
        ("logout", {"redirect_uri": "https://evil.example.net/"}, "redirect_uri"),
    ],
)
def test_without_a_trusted_redirect_uri_the_person_sees_the_error(
    person: Person, site: Site, path: str, query: dict[str, str], text: str
) -> None:
    person.visit(path, **query)
    assert urlsplit(person.browser.url).path == f"/accounts/{path}"
    assert text in person.browser.alert


@each_row(
    ("client_id", "query", "error"),
    [
        (WEB, {"response_type": "id_token"}, "invalid_request"),
        (WEB, {"prompt": "none"}, "login_required"),
        (WEB, CHALLENGE | {"code_challenge_method": "plain"}, "invalid_request"),
        (MOBILE, {}, "unauthorized_client"),
        (PAGE, {"response_type": "code"}, "unauthorized_client"),
    ],
)
def test_errors_of_a_request_are_redirected_to_the_application(
    person: Person, site: Site, client_id: str, query: dict[str, str], error: str
) -> None:
    person.asked_by(client_id, **query)
    assert query_of(site.callback.take()) == {"error": error, "state": "s 1&é"}


def test_errors_of_an_implicit_request_are_in_the_fragment(person: Person, site: Site) -> None:
    person.asked_by(WEB, response_type="token")
    assert site.callback.take() == site.callback.url("web")
    assert urlsplit(person.browser.url).fragment.startswith("error=unauthorized_client&")


def test_the_implicit_answer_stands_in_the_fragment_of_the_application_s_own_address(
    person: Person, site: Site
) -> None:
    person.asked_by(PAGE, response_type="token")
    person.sign_in()
    assert site.callback.take() == site.callback.url("page")
    came = urlsplit(person.browser.url)
    assert f"{came.scheme}://{came.netloc}" == site.callback.origin
    assert "access_token=" in came.fragment
