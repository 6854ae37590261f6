"""Which names are taken for secrets, and which are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.storage.secrets import is_secret

REFUSED = """
    .env .ENV app/.env.production prod.env .env.local .env-prod .envrc .envrc.local .flaskenv
    .dev.vars server.pem tls/private.KEY server.key store.p12 a.pfx a.jks a.ppk office.ovpn
    backup.asc id_rsa id_ed25519 deploy_rsa github_ed25519 /home/u/.ssh/config .ssh/known_hosts
    .gnupg/secring.gpg wallet.dat .bash_history .zsh_history .python_history .psql_history
    .mysql_history fish/fish_history .lesshst .viminfo .git/config .git/FETCH_HEAD
    sub/.git/modules/x/config .gitconfig .git-credentials .netrc _netrc hosts.yml
    .config/gh/hosts.yml .config/gcloud/credentials.db .aws/config .aws/credentials .kube/config
    .azure/x.json kubeconfig prod.kubeconfig kubeconfig.yaml .docker/config.json .dockercfg
    terraform.tfvars prod.auto.tfvars a.tfvars.json infra/prod.tfstate prod.tfstate.backup
    .terraformrc application_default_credentials.json service-account.json
    service_account_prod.json client_secret.json client_secret_12.apps.json client-secret.txt
    my-project-firebase-adminsdk-1.json .boto .s3cfg rclone.conf .vault-token .vault_pass
    .vault_pass.txt .npmrc .yarnrc.yml .pypirc pip.conf .cargo/credentials.toml .cargo/credentials
    .gem/credentials .bundle/config .m2/settings.xml .gradle/gradle.properties nuget.config
    NuGet.Config auth.json .composer/auth.json .pgpass .my.cnf .mylogin.cnf pgpass.conf
    database.yml .pg_service.conf wp-config.php config.inc.php local_settings.py settings_local.py
    appsettings.Production.json .htpasswd sftp-config.json .ftpconfig .msmtprc .authinfo
    tomcat-users.xml cookies.txt .claude.json .claude/.credentials.json .codex/auth.json
    .gemini/oauth_creds.json huggingface/token secrets.py secret.txt secrets.yaml secrets.toml
    secrets/prod.txt config/secrets/db.json credentials credentials.json credentials.yml.enc
    credentials/prod.key .secrets .secrets/token .credentials.json my-credentials.yaml
    prod-secrets.yml db_password.txt passwords.csv api_key.txt openai_api_key.txt token.json
    access_token private_key.json gcp-key.json /proc/self/environ /proc/1/mem /etc/shadow
    etc/shadow /run/secrets/db /dev/sda rootfs/etc/shadow /etc/ssl/private/site.crt
    .envs/.production/.django .env.d/prod env.local env.production .Renviron .dev.vars.prod
    slack.token github_token GH-TOKEN npm_token.txt token.pickle webhook_secret OPENAI_API_KEY
    .anthropic_api_key key.json keyfile.json passphrase.txt user_accessKeys.csv rootkey.csv
    github-recovery-codes.txt login.keychain-db private.pem.txt tls.key.b64 key.properties
    .google_authenticator .bash_sessions/x .ipython/profile_default/history.sqlite netrc .curlrc
    .wgetrc .subversion/auth/x .git-crypt/keys/default kubeconfig-prod prod-kubeconfig.yaml
    k3s.yaml talosconfig gha-creds-ab12.json .aws-vault/keys/x .heroku/x dockerconfig.json
    .mozilla/firefox/x/cookies.sqlite
"""

COPIES = """
    server.key.bak id_rsa.old .env~ .env.swp .server.key.swp .server.key.swo credentials.json~
    secrets.toml.bak client_secret.json.orig id_ed25519.bak .npmrc.1 #.env# .#credentials
    server.key.bak.old wp-config.php.save .envrc-old .docker.bak/config.json .ssh.old/id_custom
    database.yml.2 terraform.tfvars.tmp .pgpass.rpmsave
"""

SPELLINGS = [
    *("C:\\Users\\me\\.ssh\\id_custom", "C:\\x\\.env", "..\\.env", "a/./.env", "a//.env"),
    *("./.ENVRC", ".Git/Config", ".env ", ".env.", ".env::$DATA", "id_rsa:stream"),
    *("SECRETS/prod.txt", "．env", ".e\u200dnv", ".gi\u200ct/config"),
    *("server.key (1)", "a/../.env", "x\n/.env", "a" * 5_000, f"src/{'a' * 300}.py"),
]

REFUSED += """
    .Xauthority .erlang.cookie wpa_supplicant.conf Home.nmconnection .config/openstack/clouds.yaml
    admin-openrc.sh .cf/config.json .modal.toml configstore/firebase-tools.json web.config .mcp.json
    claude_desktop_config.json cookies.sqlite playwright/.auth/user.json storage_state.json
    release.pk8 store.jceks nats.creds creds.json deploy_key insecure_private_key db_password
    aws_credentials git-credentials unattend.xml env.php .config/scw/config.yaml keys.txt
    .snowflake/connections.toml .hex/hex.config mirror.git/config .netrc.1700000000
    .pgpass.20241122153000 www.example.key ca.template.pem .env.sample.prod
"""

READABLE = """
    main.py src/app.py README.md package.json tsconfig.json pyproject.toml Makefile Dockerfile
    settings.py config.py config/settings.yaml environment.py environment.yml env keyboard.ts
    keys.ts key.py monkey.md git/config src/git.py .gitignore .gitattributes
    .github/workflows/ci.yml .vscode/settings.json .claude/commands/review.md tokens.py
    token_counter.py tokenizer.json design-tokens.json secret_santa.py secretary.py
    secrets_manager.py test_secrets_manager.py credentials_test.go credentials.go secrets.rs
    credentials.ts password_reset.html passwords_controller.rb password_validator.py history.py
    chat_history.py HISTORY.md docs/credentials-guide.md authors.json author.py auth.py
    auth/login.py proc.py processing/proc.py dev/main.py sys/io.c hosts hosts_parser.py
    shadows.css kube.py aws/lambda.py docker/compose.yml ssh/client.py identity.py wallet.py
    cookie.py databases.md .env.example .env.sample .env.template .env.dist .env.example.local
    secrets.example.yaml terraform.tfvars.example config.inc.php.dist credentials.json.sample
    id_rsa.pub server.key.pub example.env wp-config.php.example env.py env.d.ts next-env.d.ts
    hotkeys.json keymap.json monkeys.json sort_key.py tokens.json design-token.json id_token.py
    token_bucket.py keys.py keyfile.py secret.ts passphrase.go kubeconfig.go login_data.py
"""


def test_what_usually_holds_credentials_is_a_secret():
    paths = [*REFUSED.split(), *COPIES.split(), *SPELLINGS]

    assert [path for path in paths if not is_secret(path)] == []


def test_what_only_sounds_like_it_is_none():
    paths = [*READABLE.split(), "", "/", ".", "..", "\ud800", "\0"]

    assert [path for path in paths if is_secret(path)] == []


@given(
    st.sampled_from(REFUSED.split()),
    st.sampled_from(["", "/srv/app/", "C:\\work\\", "../", "./deep/er/"]),
    st.booleans(),
)
def test_neither_the_folder_nor_the_case_nor_the_separator_matters(
    path: str, above: str, windows: bool
):
    found = path if path.startswith("/") else above + path

    assert is_secret(found.upper())
    assert is_secret(found.replace("/", "\\") if windows else found)


@given(st.text(max_size=80))
def test_every_name_has_an_answer(path: str):
    assert is_secret(path) in (True, False)
    assert is_secret(f"{path}/.ssh/x{path}")


@pytest.mark.parametrize(
    "piece", ["secret", "private_key", "secretpasswordcredential", "/", "x.bak", "~", ".1", ":"]
)
def test_no_path_takes_long(piece):
    for size in (250, 4_000, 5_000_000):
        assert is_secret(piece * (size // len(piece))) in (True, False)
