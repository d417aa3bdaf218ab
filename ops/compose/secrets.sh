#!/bin/sh
# secrets.sh: make one random password per role, the page's token and Grafana's password, in ./secrets, beside this file;
# one that is there is kept.
# The folder is yours alone; its files are readable, because containers read them as another user.
set -eu
cd "$(dirname "$0")"
mkdir -p secrets
chmod 700 secrets
for role in actor learner reader page grafana; do
    [ -s "secrets/$role" ] || od -An -N24 -tx1 /dev/urandom | tr -d ' \n' > "secrets/$role"
    chmod 644 "secrets/$role"
done
