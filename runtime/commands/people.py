"""``pair`` and ``role``: who may talk here, and as what. For the admins of the workspace."""

from __future__ import annotations

from connectors.message import Role
from runtime.access import Access, Request
from runtime.commands.registry import Command, CommandRefused, Invocation, code, items, plain

NOBODY_WAITS = "Nobody is waiting to be let in."
_PAIR = "Write `/pair list`, `/pair approve CODE` or `/pair deny CODE`."
_NO_ROLE = "none"


class People:
    """Lets strangers in and gives roles, in the workspace in which it is said.

    Who is admin by the settings lets people in to every workspace: where nothing routes them, direct messages have a
    workspace each, in which a stranger is alone.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    def commands(self) -> list[Command]:
        return [
            Command(
                "pair",
                "list, approve or reject pairing codes",
                self.pair,
                "list|approve CODE|deny CODE",
                role=Role.ADMIN,
            ),
            Command(
                "role",
                "give a person a role",
                self.role,
                "USER ROLE",
                role=Role.ADMIN,
                details=(
                    "USER is an id of this platform, `connector:id`, or the name of somebody who has a role here; "
                    "ROLE `admin`, `member`, `viewer` or `none`."
                ),
            ),
        ]

    async def pair(self, invocation: Invocation) -> str:
        word, *rest = invocation.rest.split() or ["list"]
        here, by = invocation.key.workspace_id, _speaker(invocation)
        name = invocation.message.author.name
        workspace_id = None if self._access.is_admin_everywhere(invocation.message) else here
        match word.lower(), rest:
            case "list", []:
                waiting = [one for one in await self._access.pending() if workspace_id in (None, one.workspace_id)]
                return items(_waits(one, here) for one in waiting) or NOBODY_WAITS
            case "approve", [given]:
                person = await self._access.approve(given, workspace_id, by=by, by_name=name)
                who = f"{plain(person.name) or 'They'} ({code(person.user)})"
                return f"{who} may now talk to me, as a {person.role}. I have told them, and I answer what they asked."
            case "deny", [given]:
                denied = await self._access.deny(given, workspace_id, by=by, by_name=name)
                return f"{plain(denied.name) or 'The person'} ({code(denied.user)}) is not let in."
            case _:
                raise CommandRefused(_PAIR)

    async def role(self, invocation: Invocation) -> str:
        words = invocation.rest.split()
        roles = [*map(str, Role), _NO_ROLE]
        if len(words) < 2 or words[-1].lower() not in roles:
            raise CommandRefused(f"Write {code('/role USER ROLE')}. The roles are {', '.join(map(code, roles))}.")
        user = await self._user(" ".join(words[:-1]), invocation)
        wanted = None if words[-1].lower() == _NO_ROLE else Role(words[-1].lower())
        try:
            await self._access.set_role(user, wanted, invocation.key.workspace_id, by=_speaker(invocation))
        except ValueError as error:
            raise CommandRefused(f"{error}.") from None
        has = await self._access.role_of(user, invocation.key.workspace_id)
        said = f"{code(user)} {f'is {has}' if has else 'has no role'} here now."
        return said if has is wanted else f"{said} This role comes from the settings; change it there."

    async def _user(self, given: str, invocation: Invocation) -> str:
        """Who is meant by *given*: an id, or the name of one person with a role here, of this platform before others.
        The name is the one under which an admin has let them in. Raises `CommandRefused`: any other name is no id, and
        a role that is given to one would be nobody's."""
        if ":" in given and " " not in given:
            return given
        platform, name = invocation.message.connector, given.removeprefix("@").casefold()
        named = {
            one.user
            for one in await self._access.people(invocation.key.workspace_id)
            if one.name and one.name.casefold() == name
        }
        here = {user for user in named if user.startswith(f"{platform}:")}
        if len(found := here or named) > 1:
            raise CommandRefused(
                f"Several people are called {plain(given)}: {', '.join(map(code, sorted(found)))}. Give the id."
            )
        as_id = f"{platform}:{given.removeprefix('@')}"
        # People choose their names: one who is called like somebody's id is not to get what is meant for that one.
        if found and as_id not in found and " " not in given and _has_digits(given):
            raise CommandRefused(
                f"Do you mean {code(as_id)}, or {code(found.pop())}, who is called {plain(given)}? Give the id."
            )
        if found:
            return found.pop()
        is_name = given.startswith("@") and not name.isdecimal()
        if _has_digits(invocation.message.author.id) and not _has_digits(given):  # as the speaker's, so all ids there
            is_name = True
        if is_name or " " in given:
            raise CommandRefused(
                f"Nobody here is called {plain(given)}. Give the person's id, for example {code(platform + ':42')}."
            )
        return as_id


def _has_digits(given: str) -> bool:
    return any(map(str.isdigit, given))


def _speaker(invocation: Invocation) -> str:
    return invocation.message.author.user(invocation.message.connector)


def _waits(one: Request, here: str) -> str:
    where = "" if one.workspace_id == here else f" to {code(one.workspace_id)}"
    places = "".join(f", in {code(place)}" for place in one.asked_in if place)
    return f"{plain(one.name) or 'somebody'} ({code(one.user)}){where}{places}: {code('/pair approve ' + one.code)}"
