"""Recognition of files that usually contain credentials, by their names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

_DATA = "json|yaml|yml|toml|ini|cfg|conf|properties|txt|xml|csv|plist|enc"

_TABLE = {
    "environment": """
        .env .env.* .env-* .env_* *.env .envrc .envrc.* *.envrc .flaskenv .dev.vars
        .dev.vars.* .envs/ .env.d/ .environment env.local env.production env.staging .renviron
    """,
    "named as secrets": """
        secret secrets credential credentials password passwords passwd private_key .secret
        .secrets .credentials .passwords .token .tokens token token.json token.txt secret.*
        secrets.* *.secret *.secrets credential.* credentials.* *.credentials password.*
        passwords.* passwd.* private_key.* private-key.* privatekey.* privkey* *secret*.{data}
        *credential*.{data} *password*.{data} *passwd*.{data} *private*key*.{data} api_key
        apikey api-key *api_key*.{data} *apikey*.{data} *api-key*.{data} access_token*
        refresh_token* *access_token*.{data} *auth_token*.{data} *-key.json *_key.json secret/
        secrets/ .secret/ .secrets/ credentials/ .credentials/ private_keys/ passwords/
        *.token *_token *-token *_token.txt *-token.txt token.pickle credentials.pickle *_secret
        *-secret *_api_key *-api-key key.json keys.json keyfile keyfile.json privatekey
        passphrase passphrase.txt pass.txt *accesskeys.csv rootkey.csv *recovery-codes*.txt
        *recovery_codes*.txt *backup-codes*.txt *backup_codes*.txt creds creds.{data} *.creds
        secret_key secret-key *_password *-password *_credentials *-credentials keys.txt token.yaml
        token.yml storage_state.json storagestate.json
    """,
    "keys and certificates": """
        *.pem *.key *.p8 *.p12 *.pfx *.pkcs12 *.jks *.keystore *.bks *.ppk *.keytab *.asc *.gpg
        *.pgp *.privkey *.agekey *.ovpn *.kdb *.kdbx *.jwk secring.* id_rsa* id_dsa* id_ecdsa*
        id_ed25519* *_rsa *_dsa *_ecdsa *_ed25519 identity ssh_host_*_key krb5cc_* wg0.conf wg1.conf
        .ssh/ .gnupg/ .pki/ .password-store/ keyrings/ keychains/ wallet.dat wallet.json
        *.wallet mnemonic* utc--* *.keychain *.keychain-db *.key.txt *.pem.txt *.key.b64 *.pem.b64
        *.p12.b64 *.pfx.b64 key.properties keystore.properties .google_authenticator *.pk8 *.pvk
        *.jceks *_private_key *-private-key deploy_key deploy-key ssh_key ssh-key
    """,
    "shell and program histories": """
        .history .*_history .*history fish_history consolehost_history.txt .lesshst .viminfo
        .bash_sessions/ .zsh_sessions/ history.sqlite
    """,
    "version control": """
        .git/ .hg/ .svn/ .bzr/ .gitconfig .git-credentials .hgrc .config/git/ .config/gh/
        hosts.yml .config/hub .config/glab-cli/ .config/github-copilot/ .netrc _netrc
        netrc .curlrc .wgetrc .subversion/auth/ .git-crypt/ git-credentials *.git/config .arcrc
    """,
    "cloud and clusters": """
        .aws/ .azure/ .kube/ .docker/ .gcloud/ .config/gcloud/ .oci/ .aliyun/ kubeconfig
        kubeconfig.* *.kubeconfig kube.config .dockercfg .dockerconfigjson admin.conf
        application_default_credentials.json service-account*.json service_account*.json
        adc.json serviceaccount*.json client_secret* client-secret* *firebase-adminsdk*.json
        oauth*.json google-services.json googleservice-info.plist *.tfvars *.tfvars.json
        *.tfstate *.tfstate.* .terraformrc terraform.rc .terraform.d/ .pulumi/ .fly/ .tsh/
        .minikube/ .cloudflared/ .config/doctl/ .config/hcloud/ .config/heroku/ .config/op/
        .config/sops/ .config/stripe/ .boto .s3cfg .passwd-s3fs rclone.conf .ossutilconfig
        .databrickscfg .snowsql/ .dbt/ .vault-token .vault_pass* .vault-pass* vault_pass*
        vault-pass* .ngrok2/ ngrok.yml .sentryclirc sentry.properties .netlify/ .railway/
        knife.rb .chef/ kube-config .kube-config kubeconfig-* kubeconfig_* *-kubeconfig.*
        *_kubeconfig.* k3s.yaml talosconfig .talos/ gha-creds-*.json .aws-vault/ .okta/ .heroku/
        .dockerconfig dockerconfig.json clouds.yaml clouds.yml *-openrc.sh *openrc .cf/ .bluemix/
        .modal.toml .config/scw/ .vultr-cli.yaml .config/argocd/ .rancher/ .snowflake/ .mc/
        .runpod/ .wrangler/ .config/.wrangler/ helm/registry/ .travis/ .circleci/cli.yml
    """,
    "packages and builds": """
        .npmrc .yarnrc .yarnrc.yml .pypirc pip.conf pip.ini .condarc auth.json auth.toml
        .cargo/credentials .cargo/credentials.toml .gem/credentials .bundle/config nuget.config
        .m2/settings.xml settings-security.xml .gradle/gradle.properties .ivy2/.credentials
        .sbt/.credentials .hex/ configstore/ .composer/ gradle-local.properties local.properties
        *.mobileprovision
    """,
    "databases": """
        .pgpass pgpass.conf .pg_service.conf pg_service.conf .my.cnf .mylogin.cnf .mongorc.js
        .dbshell odbc.ini .odbc.ini database.yml database.yaml connectionstrings.* dbconfig.*
    """,
    "web and mail": """
        wp-config.php wp-config-*.php config.inc.php localsettings.php settings.local.php
        local_settings.py settings_local.py local.settings.json appsettings*.json web.*.config
        parameters.yml application-prod* application-local* tomcat-users.xml
        jetty-realm.properties .htpasswd htpasswd htdigest .htdigest sftp.json sftp-config.json
        .ftpconfig cookies.txt filezilla.xml sitemanager.xml recentservers.xml winscp.ini
        logins.json key3.db key4.db cookies login*data .mozilla/ .msmtprc msmtprc .muttrc
        .neomuttrc .fetchmailrc .mailrc .authinfo authinfo sasl_passwd* .smbcredentials smbpasswd
        .smbpasswd accounts.xml web.config env.php cookies.sqlite cookies.json .auth/ .offlineimaprc
        .mbsyncrc
    """,
    "agents and models": """
        .claude.json .claude.json.* .aider.conf.yml oauth_creds.json kaggle.json
        huggingface/token .huggingface/ .streamlit/secrets.toml .openai/ .anthropic/ .mcp.json
        mcp.json claude_desktop_config.json .continue/config.*
    """,
    "the system": """
        /proc/ /sys/ /dev/ /run/secrets/ /var/run/secrets/ /etc/shadow* /etc/gshadow* etc/shadow
        etc/shadow- etc/gshadow etc/master.passwd etc/sudoers etc/security/opasswd
        etc/ssl/private/ etc/wireguard/ etc/ppp/chap-secrets etc/sudoers.d/ shadow gshadow
        .xauthority .erlang.cookie wpa_supplicant*.conf *.nmconnection unattend.xml autounattend.xml
    """,
}

SECRET_PATTERNS = {kind: tuple(patterns.split()) for kind, patterns in _TABLE.items()}
"""Patterns by kind, as in ``.gitignore``: ``a`` matches the name of a file, ``a/`` a folder above
it, ``a/b`` the end of a path, and ``/a`` the beginning. ``{data}`` matches the suffixes of data
files."""

_MAX_PATH_CHARS = 4096
_MAX_NAME_CHARS = 255
_BACKUP = re.compile(
    r"(?:~|#| \(\d\)|[-_ ](?:bak|backup|old|copy|orig)"
    r"|\.(?:bak|backup|old|orig|saved?|sav|sw[a-p]|tmp|copy|new|prev|rpmsave|dpkg-old|\d+))$"
)
_EXAMPLE = re.compile(
    r"\.(?:example|sample|template|dist|tmpl|tpl|pub)"
    r"(?:\.(?:json|ya?ml|toml|ini|cfg|conf|properties|txt|xml|env|md|php|local))?$"
    r"|^(?:example|sample|template)\.env$"
)
_SOURCE = re.compile(
    r"\.(?:go|rs|tsx?|java|kts?|scala|swift|cc|cpp|hpp|cs|dart|hs|ml|vue|svelte|css|html)$"
)


# Invisible letters and marks that are not in Unicode's category Cf (format).
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def is_secret(path: str) -> bool:
    """Return True if a file with the name *path* usually contains credentials.

    Such files are ``.env``, private keys, tokens and shell histories. Only the name is checked; the
    case and the kind of separator do not matter. A copy such as ``server.key.bak`` is treated like
    its original. Examples (``.env.example``), public keys and source code of compiled languages
    return False, unless they are in a folder for secrets. `Restore` denies these files by default;
    a function that you give instead may call this one.
    """
    if len(path) > _MAX_PATH_CHARS:
        return True  # no file has so long a path, and matching would take long
    path = _normalize(path)
    parts = [piece for piece in path.split("/") if piece not in ("", ".")]
    if any(len(part) > _MAX_NAME_CHARS for part in parts):
        return True
    root = "/" if path.startswith("/") else ""
    spellings = {root + "/".join(spelling) for spelling in _spellings(parts)}
    if any(_FOLDERS.search(spelling) for spelling in spellings):
        return True
    name = _without_backup(parts[-1]) if parts else ""
    if _EXAMPLE.search(name) or _SOURCE.search(name):
        return False
    return any(_FILES.search(spelling) for spelling in spellings)


def _normalize(path: str) -> str:
    """Return *path* in lower case, with "/" as separator and without invisible characters."""
    characters = _INVISIBLE.sub("", path)
    visible = "".join(char for char in characters if unicodedata.category(char) != "Cf")
    return unicodedata.normalize("NFKC", visible).casefold().replace("\\", "/")


def _spellings(parts: list[str]) -> Iterator[list[str]]:
    """Yield *parts*, then without text that Windows ignores, then without suffixes of copies."""
    yield parts
    windows_parts = [_trim(part) for part in parts]
    yield windows_parts
    original_parts = [_without_backup(part) for part in windows_parts]
    yield original_parts
    # The swap file of an editor: .name.swp
    *folders, name = original_parts or [""]
    yield [*folders, name.lstrip(".#")]


def _trim(part: str) -> str:
    """Return *part* without the name of a stream and trailing dots, which Windows ignores."""
    return re.sub(r"(?<=..):.*$", "", part).rstrip(" .") or part


def _without_backup(name: str) -> str:
    """Return the file *name* without endings of backups, such as ``.bak``."""
    while (shorter := _BACKUP.sub("", name)) and shorter != name:
        name = shorter
    return name


def _expression(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(_translate(pattern) for pattern in patterns))


def _translate(pattern: str) -> str:
    """Return a regular expression that finds *pattern* in a path.

    ``*`` matches within one part of the path. A slash at the beginning means the root, one at the
    end a folder.
    """
    body = re.escape(pattern.strip("/"))
    body = body.replace(r"\*", "[^/]*")
    body = body.replace(r"\{data\}", f"(?:{_DATA})")
    begin = "^/" if pattern.startswith("/") else "(?:^|/)"
    end = "/" if pattern.endswith("/") else "$"
    return begin + body + end


_ALL = [pattern for patterns in SECRET_PATTERNS.values() for pattern in patterns]
_FOLDERS = _expression(pattern for pattern in _ALL if pattern.endswith("/"))
_FILES = _expression(pattern for pattern in _ALL if not pattern.endswith("/"))
