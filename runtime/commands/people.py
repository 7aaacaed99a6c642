"""``pair`` and ``role``: let people in and give them roles, for the workspace's admins."""

from __future__ import annotations

from connectors.message import Role
from runtime.access import Access, PairingRequest
from runtime.commands.registry import Command, CommandRefused, Invocation, bullet_list, code, escape_markdown

NOBODY_WAITS = "Nobody is waiting to be let in."
_PAIR = "Write `/pair list`, `/pair approve CODE` or `/pair deny CODE`."
_NO_ROLE = "none"


class People:
    """Lets people in and gives roles, in the workspace of the conversation.

    Admins by the settings let people in to every workspace: a direct message without a route has a workspace of its
    own, in which a stranger is alone.
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
        here, by = invocation.key.workspace_id, invocation.user
        name = invocation.message.author.name
        workspace_id = None if self._access.is_admin_everywhere(invocation.message) else here
        match word.lower(), rest:
            case "list", []:
                requests = await self._access.pending()
                shown = [request for request in requests if workspace_id in (None, request.workspace_id)]
                return bullet_list(_request_line(request, here) for request in shown) or NOBODY_WAITS
            case "approve", [pairing_code]:
                person = await self._access.approve(pairing_code, workspace_id, by=by, by_name=name)
                who = f"{escape_markdown(person.name) or 'They'} ({code(person.user)})"
                return f"{who} may now talk to me, as a {person.role}. I have told them, and I answer what they asked."
            case "deny", [pairing_code]:
                denied = await self._access.deny(pairing_code, workspace_id, by=by, by_name=name)
                return f"{escape_markdown(denied.name) or 'The person'} ({code(denied.user)}) is not let in."
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
            await self._access.set_role(user, wanted, invocation.key.workspace_id, by=invocation.user)
        except ValueError as error:
            raise CommandRefused(f"{error}.") from None
        has = await self._access.role_of(user, invocation.key.workspace_id)
        result = f"{code(user)} {f'is {has}' if has else 'has no role'} here now."
        return result if has is wanted else f"{result} This role comes from the settings; change it there."

    async def _user(self, text: str, invocation: Invocation) -> str:
        """Return the id of a person by *text*: an id, or the name of one person with a role here, of this platform
        before others.

        It is the name under which an admin let them in. Raises `CommandRefused` for any other name: a role for a name
        that is no id would be nobody's."""
        if ":" in text and " " not in text:
            return text
        platform, name = invocation.message.connector, text.removeprefix("@").casefold()
        named = {
            person.user
            for person in await self._access.people(invocation.key.workspace_id)
            if person.name.casefold() == name and not person.is_self_named
        }
        shown = escape_markdown(text)
        here = {user for user in named if user.startswith(f"{platform}:")}
        if len(found := here or named) > 1:
            raise CommandRefused(
                f"Several people are called {shown}: {', '.join(map(code, sorted(found)))}. Give the id."
            )
        as_id = f"{platform}:{text.removeprefix('@')}"
        # People choose their names: somebody whose name is another person's id must not get that person's role.
        if found and as_id not in found and " " not in text and _has_digits(text):
            raise CommandRefused(
                f"Do you mean {code(as_id)}, or {code(found.pop())}, who is called {shown}? Give the id."
            )
        if found:
            return found.pop()
        is_name = text.startswith("@") and not name.isdecimal()
        if _has_digits(invocation.message.author.id) and not _has_digits(text):  # ids there have digits
            is_name = True
        if is_name or " " in text:
            raise CommandRefused(
                f"Nobody here is called {shown}. Give the person's id, for example {code(platform + ':42')}."
            )
        return as_id


def _has_digits(text: str) -> bool:
    return any(map(str.isdigit, text))


def _request_line(request: PairingRequest, here: str) -> str:
    where = "" if request.workspace_id == here else f" to {code(request.workspace_id)}"
    places = "".join(f", in {code(place)}" for place in request.asked_in if place)
    name, approve = escape_markdown(request.name) or "somebody", code(f"/pair approve {request.code}")
    return f"{name} ({code(request.user)}){where}{places}: {approve}"
