"""Device types of two organizations besides those of `build_world`, for tests of lists."""

from broker.accounts.consent import sign_in_grant
from broker.secrets import token_hash
from storage.database import Database
from storage.records import DeviceTokenRecord, ManifestRecord, TokenRecord
from storage.transaction import Transaction
from tests.factories import NOW_MS, World, new_application, new_device, new_device_type, new_user

BETA = "be" * 16
CAROL, CAROL_TOKEN = "ca20" * 8, "34" * 16  # administrator of Beta
BETA_APPLICATION, BETA_TOKEN = "bb" * 16, "35" * 16
SENSOR, SENSOR_TOKEN = "14" * 16, "24" * 16  # Ada's device of Beta's private type

FIELDS = '{"fields":[{"name":"t","valueClass":"Double"}]}'


async def add_types(database: Database, world: World) -> None:
    """Beta, whose administrator is Carol, has a published, a protected and a private type; Acme a private one.

    Ada has a device of Beta's private type. Beta's application asks for lights and for its own private type.
    """
    await database.write(lambda tx: _add(tx, world))


def _add(tx: Transaction, world: World) -> None:
    beta = tx.accounts.add_organization(BETA, "Beta", 100).key
    carol = tx.accounts.add_user(
        new_user(
            CAROL, email="carol@example.org", name="carol-example", full_name="Carol", password_hash=None, now_ms=1
        )
    ).key
    tx.accounts.set_role(beta, carol, "administrator")
    light = tx.device_types.device_type(world.light_type)
    assert light is not None
    acme = light.organization
    keys = {
        name: tx.device_types.put_device_type(
            new_device_type(
                f"dt-{name}",
                unique_name=f"example.{name}",
                name=name.replace("_", " ").title(),
                organization=organization,
                published=published,
                protected=protected,
                rsp=False,
                description=None,
                tags=tags,
                now_ms=5,
                owner=owner,
            )
        )
        for name, organization, published, protected, tags, owner in (
            ("sensor", beta, True, False, ("home", "battery"), None),
            ("sensor_guard", beta, True, True, ("home", "battery", "wired"), None),
            ("sensor_private", beta, False, False, ("industrial",), None),
            ("lamp_private", acme, False, False, ("home", "lamp"), world.bob),
        )
    }
    tx.device_types.add_manifest(ManifestRecord(keys["sensor"], 1, FIELDS, True, 7))
    tx.device_types.add_manifest(ManifestRecord(keys["sensor"], 2, FIELDS, True, 8))
    tx.device_types.add_manifest(ManifestRecord(keys["sensor"], 3, FIELDS, False, 9))
    device = tx.devices.put_device(
        new_device(
            SENSOR,
            owner=world.ada,
            device_type=keys["sensor_private"],
            name="Sensor",
            manifest_version=0,
            manifest_version_policy="LATEST",
            enabled=True,
            now_ms=1,
        )
    )
    tx.devices.put_token(DeviceTokenRecord(device, token_hash(SENSOR_TOKEN), b"", None, 1))
    application = tx.accounts.put_application(
        new_application(
            BETA_APPLICATION,
            organization=beta,
            name="Beta board",
            secret=b"",
            methods=(),
            redirect_uris=(),
            permissions=(
                {"device_type": light.id, "permissions": ["READ"]},
                {"device_type": "dt-sensor_private", "permissions": ["READ"]},
            ),
        )
    ).key
    tx.accounts.put_grant(sign_in_grant(application, carol))
    for token, user in ((CAROL_TOKEN, carol), (BETA_TOKEN, None)):
        tx.accounts.put_token(TokenRecord(token_hash(token), application, user, 1, NOW_MS * 2))
