"""Every path of reference 2 is there: without a token it answers anything but 404 and 405."""

from pathlib import Path

import httpx
import pytest

from config.settings import Accounts, Limits, Settings, TrialSettings
from tests.factories import World
from tests.rows import each_row

pytestmark = pytest.mark.slow


ID = "f" * 32
# As in the tables: what does not need a token there, answers for other reasons.
ACCOUNTS = """
GET /authorize
GET /signin
POST /login
GET /login/code
POST /login/code
GET /account
GET /account/second-factor
POST /account/second-factor
POST /account/second-factor/remove
POST /account/sessions
POST /consent
GET /signup
POST /signup
POST /token
POST /device/code
GET /go
POST /go
GET /logout
GET /signout
GET /userinfo
POST /userinfo
GET /jwks.json
GET /tokenInfo
POST /checkToken
GET /checkSession
POST /revokeToken
PUT /revokeToken
PUT /revokeAccessToken
GET /accept/label
GET /accept/share
GET /accept/trial
GET /pricing/upgrade
POST /pricing/upgrade
"""
REST = """
POST /accounts/token
POST /accounts/checkToken
GET /accounts/tokenInfo
GET /users/self
GET /users/{}/properties
POST /users/{}/properties
PUT /users/{}/properties
DELETE /users/{}/properties
GET /users/{}/applications
DELETE /users/{}/applications/{}
GET /users/{}/devices
GET /users/{}/devicetypes
GET /users/{}/shares
GET /users/{}/transfers
GET /users/{}/found
PUT /users/{}
DELETE /users/{}
POST /users/{}/archive
GET /users/{}/archive
GET /users/{}/archive/result
GET /users/{}/audit
GET /users/{}/automations
GET /names
GET /users/{}/sessions
DELETE /users/{}/sessions
DELETE /users/{}/sessions/{}
GET /users/{}/rules
GET /rules/{}/provision
GET /rules/{}/explain
POST /rules/{}/replay
POST /rules/try
GET /users/{}/scenes
GET /users/{}/trials
POST /devices
GET /devices/{}
PUT /devices/{}
DELETE /devices/{}
GET /devices/{}/tokens
PUT /devices/{}/tokens
DELETE /devices/{}/tokens
GET /devices/{}/failures
GET /devices/{}/refusals
GET /devices/{}/dropped
GET /devices/{}/lwm2m
GET /devices/{}/wanted
PUT /devices/{}/wanted
DELETE /devices/{}/wanted
GET /devices/{}/quota
POST /devices/{}/providerauth
DELETE /devices/{}/providerauth
GET /devices/{}/status
PUT /devices/{}/status
GET /devices/status
GET /devices/{}/presence
POST /devices/{}/shares
GET /devices/{}/shares
GET /devices/{}/shares/{}
PUT /devices/{}/shares/{}
DELETE /devices/{}/shares/{}
POST /devices/{}/transfer
GET /devices/{}/transfer
PUT /devices/{}/transfer
DELETE /devices/{}/transfer
PUT /devices/registrations/pin
GET /devices/registrations/{}/status
DELETE /devices/{}/registrations
GET /devicetypes
GET /devicetypes/cloudconnectors
GET /devicetypes/{}
GET /applications/{}/devicetypes
GET /devicetypes/{}/availablemanifestversions
GET /devicetypes/{}/manifests/latest/properties
GET /devicetypes/{}/manifests/1/properties
POST /devicetypes/{}/whitelist
GET /devicetypes/{}/whitelist
GET /devicetypes/{}/whitelist/status
PUT /devicetypes/{}/whitelist/enable
GET /devicetypes/{}/whitelist/{}/status
GET /devicetypes/{}/whitelist/{}/rejectedRows
GET /devicetypes/{}/whitelist/vdid/{}
DELETE /devicetypes/{}/whitelist/{}
GET /devicetypes/{}/whitelist/certificates
POST /devicetypes/{}/whitelist/certificates
DELETE /devicetypes/{}/whitelist/certificates/{}
GET /tags
GET /tags/categories
GET /tags/suggestions
POST /messages
POST /messages/batch
POST /actions
GET /messages
GET /actions
GET /messages/last
GET /messages/snapshots
GET /messages/analytics/aggregates
GET /messages/analytics/histogram
GET /messages/presence
GET /values
POST /messages/import
GET /messages/import/history
GET /messages/import/{}/status
GET /users/{}/readers
GET /devicetypes/{}/sheet
DELETE /messages
GET /messages/deletions
GET /messages/deletions/{}
POST /messages/export
GET /messages/export/history
GET /messages/export/{}/status
GET /messages/export/{}/result
POST /subscriptions
GET /subscriptions
GET /subscriptions/{}
PUT /subscriptions/{}
DELETE /subscriptions/{}
POST /subscriptions/{}/validate
POST /subscriptions/{}/secret
GET /subscriptions/{}/deliveries
POST /subscriptions/{}/deliveries/replay
GET /notifications/{}/messages
POST /rules
GET /users/{}/telling
PUT /users/{}/telling
POST /users/{}/telling/test
GET /alarms
GET /alarms/{}
PUT /alarms/{}
GET /alarms/{}/explain
GET /rules
GET /rules/{}
PUT /rules/{}
DELETE /rules/{}
GET /rules/{}/actions
POST /rules/{}/actions
GET /rules/{}/executions
PUT /found/{}
GET /users/{}/boards
POST /users/{}/boards
GET /boards/{}
PUT /boards/{}
DELETE /boards/{}
PUT /boards/{}/link
DELETE /boards/{}/link
POST /scenes
GET /scenes
GET /scenes/{}
PUT /scenes/{}
DELETE /scenes/{}
GET /scenes/{}/provision
POST /scenes/{}
POST /ml/models
GET /ml/models
GET /ml/models/{}
DELETE /ml/models/{}
POST /ml/models/{}/predict
GET /pricing/devices/{}/revenueshare/upgradepath
GET /pricing/devicetypes/{}/pricingtiers
POST /pricing/devicetypes/{}/pricingtiers
GET /pricing/devices/{}/pricingtiers
PUT /pricing/devices/{}/pricingtiers
GET /devicemgmt/devices/properties
GET /devicemgmt/devices/{}/properties
POST /devicemgmt/devices/{}/serverproperties
DELETE /devicemgmt/devices/{}/serverproperties
GET /devicemgmt/devicetypes/{}
PUT /devicemgmt/devicetypes/{}
GET /devicemgmt/devicetypes/{}/manifest/properties
POST /devicemgmt/devicetypes/{}/images
GET /devicemgmt/devicetypes/{}/images
DELETE /devicemgmt/devicetypes/{}/images/{}
POST /devicemgmt/tasks
GET /devicemgmt/tasks
GET /devicemgmt/tasks/{}
PUT /devicemgmt/tasks/{}
GET /devicemgmt/tasks/{}/statuses
GET /devicemgmt/tasks/{}/statuses/history
PUT /devicemgmt/tasks/{}/devices/{}
POST /devicemgmt/tasks/{}/devices/{}/acceptance
GET /devicemgmt/devices/{}/tasks
GET /devicemgmt/devices/{}/pendingtasks
GET /updates/urls/{}
POST /trials
GET /trials/{}
PUT /trials/{}
DELETE /trials/{}
PUT /trials/{}/application
POST /trials/{}/invitations
GET /trials/{}/invitations
GET /trials/{}/invitations/{}
PUT /trials/{}/invitations/{}
DELETE /trials/{}/invitations/{}
GET /trials/{}/administrators
GET /trials/{}/participants
DELETE /trials/{}/administrators/{}
DELETE /trials/{}/participants/{}
GET /trials/{}/devices
GET /trials/{}/participants/{}/devices
POST /trials/{}/participants/{}/devices
DELETE /trials/{}/participants/{}/devices/{}
GET /trials/{}/devicetypes
POST /trials/{}/devicetypes
DELETE /trials/{}/devicetypes/{}
POST /trials/sessions
GET /trials/sessions/{}
PUT /trials/sessions/{}
DELETE /trials/sessions/{}
GET /trials/sessions/search
GET /trials/{}/sessions
GET /trials/{}/sessions/ongoing
GET /trials/{}/sessions/metadata
POST /trials/{}/sessions/metadata
GET /trials/{}/sessions/metadata/{}
PUT /trials/{}/sessions/metadata/{}
DELETE /trials/{}/sessions/metadata/{}
GET /trials/{}/sessions/metadata/key/{}
GET /trials/{}/sessions/rules
POST /trials/{}/sessions/rules
GET /trials/sessions/rules/{}
PUT /trials/sessions/rules/{}
DELETE /trials/sessions/rules/{}
GET /trials/sessions/rules/{}/sharing
PUT /trials/sessions/rules/{}/sharing
GET /trials/{}/sessions/rules/metadata
POST /trials/{}/sessions/rules/metadata
GET /trials/{}/sessions/rules/metadata/{}
PUT /trials/{}/sessions/rules/metadata/{}
DELETE /trials/{}/sessions/rules/metadata/{}
GET /developer/organizations
GET /developer/organizations/{}/applications
POST /developer/organizations/{}/applications
GET /developer/applications/{}
PUT /developer/applications/{}
DELETE /developer/applications/{}
GET /developer/applications/{}/deletion
POST /developer/applications/{}/subscriptions
POST /developer/applications/{}/secret
GET /developer/organizations/{}/subscriptions
GET /developer/organizations/{}/boards
GET /developer/organizations/{}/tasks
GET /developer/organizations/{}/connectors
POST /developer/organizations/{}/devicetypes
PUT /developer/devicetypes/{}
GET /developer/devicetypes/{}/failures
GET /developer/devicetypes/{}/connector
GET /devicetypes/{}/manifests
POST /devicetypes/{}/manifests
POST /devicetypes/{}/manifests/try
GET /operator/overview
GET /operator/refusals
GET /operator/audit
GET /operator/doctor
GET /operator/backups
POST /operator/backups
GET /operator/diagnostics
GET /operator/users
POST /operator/users
POST /operator/invitations
GET /operator/organizations
GET /operator/devices
GET /operator/connections
GET /operator/samples
GET /operator/waiting
POST /operator/plans
POST /operator/payments
POST /operator/manifests
GET /cloudconnectors/{}/auth
GET /cloudconnectors/{}/thirdpartynotifications
POST /cloudconnectors/{}/thirdpartynotifications
"""


def rows(table: str, root: str) -> list[tuple[str, str]]:
    split = (line.split() for line in table.split("\n") if line)
    return [(method, root + path.replace("{}", ID)) for method, path in split]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Open sign-up: otherwise the page /signup is hidden. With the sessions of trials, which are hidden, too."""
    return Settings(
        state_dir=tmp_path,
        accounts=Accounts(signup="open"),
        limits=Limits(rate_limits="off", quotas="off"),
        trials=TrialSettings(sessions="on"),
    )


# These paths need no token, and look the object up first.
UNKNOWN_THING = ("/cloudconnectors/", "/accounts/accept/", "/updates/urls/")


async def test_every_path_is_there(api: httpx.AsyncClient, world: World) -> None:
    missing = []
    for method, path in rows(ACCOUNTS, "/accounts") + rows(REST, "/v1.1"):
        url = api.base_url.copy_with(path=path)
        status = (await api.request(method, url)).status_code
        if status == 404 and any(part in path for part in UNKNOWN_THING):
            # Another method is a known path's 405, and an unknown path's 404.
            status = 404 if (await api.request("PATCH", url)).status_code == 404 else 0
        if status in {404, 405}:
            missing.append((method, path, status))
    assert missing == []


@each_row("path", ["/v1.1/no/such/path", "/v1.1", "/accounts/no", "/v1.1/messages/x/y/z"])
async def test_other_paths_are_not(api: httpx.AsyncClient, world: World, path: str) -> None:
    assert (await api.get(api.base_url.copy_with(path=path))).status_code == 404
