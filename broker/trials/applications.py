"""The application of a trial: its id and secret, and the organization that owns it (reference 14.2).

A trial's application has none of the rights of the other applications of its organization: somebody who knows its
secret need not be a member. It reaches only what the participants granted it (broker/accounts/permissions.py).
"""

import json
from typing import Final

from broker.accounts.applications import Method
from broker.ids import new_id
from broker.secrets import Vault
from config.limits import FREE_MONTHLY_MESSAGES
from storage.keys import ApplicationKey, OrganizationKey
from storage.records import NEW_KEY, ApplicationRecord, UserRecord
from storage.transaction import Transaction

#: Nobody signs in through it: anyone may create a trial, and its name could be that of somebody else.
_METHODS: Final = (Method.CLIENT_CREDENTIALS.value,)


class TrialApplications:
    """Changes applications in the caller's transaction."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def make(self, tx: Transaction, creator: UserRecord, trial_name: str) -> ApplicationKey:
        record = ApplicationRecord(
            key=NEW_KEY,
            id=new_id(),
            organization=_organization(tx, creator),
            name=name_of(trial_name),
            secret=self._vault.seal(new_id()),
            methods=_METHODS,
            redirect_uris=(),
            permissions=(),
        )
        return tx.accounts.put_application(record).key

    def renew(self, tx: Transaction, application: ApplicationKey) -> None:
        """Another id and secret; the former ones are worth nothing any more."""
        self._rename(tx, application, _METHODS)

    def close(self, tx: Transaction, application: ApplicationKey) -> None:
        """Stop the application from getting tokens."""
        tx.trials.set_methods(application, json.dumps(()))

    def retire(self, tx: Transaction, application: ApplicationKey) -> None:
        """Replace the id, the secret and the name of the application by unknown ones. Its row stays, because others
        refer to it."""
        self._rename(tx, application, ())
        tx.trials.name_application(application, name_of("deleted"))

    def secret_of(self, record: ApplicationRecord) -> str:
        return self._vault.open(record.secret)

    def _rename(self, tx: Transaction, application: ApplicationKey, methods: tuple[str, ...]) -> None:
        tx.trials.rename_application(application, id_=new_id(), secret=self._vault.seal(new_id()))
        tx.trials.set_methods(application, json.dumps(methods))


def name_of(trial_name: str) -> str:
    """The name of a trial's application. Its first word distinguishes it from applications that the operator named."""
    return f"Trial: {trial_name}"


def _organization(tx: Transaction, creator: UserRecord) -> OrganizationKey:
    """The creator's organization; without one, a personal one, which is made when it is first needed."""
    found = tx.trials.organization_of(creator.key) or tx.trials.personal_organization(creator.key)
    if found is not None:
        return found
    id_, name = new_id(), f"Personal organization of {creator.name}"
    if tx.accounts.organization_named(name) is not None:
        name = f"{name} ({id_})"
    made = tx.accounts.add_organization(id_, name, FREE_MONTHLY_MESSAGES).key
    tx.trials.put_personal_organization(creator.key, made)
    return made
