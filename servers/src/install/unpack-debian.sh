# Unpacks a package (or several, in one word) of a Debian suite and the libraries it needs, and writes a script that runs its program with them.
# apt works on a state of its own in which nothing is installed, so it names every library, down to the C library:
# those of this machine may be too old. It checks the signatures as ever.
# usage: unpack-debian.sh SUITE PACKAGE PROGRAM DIRECTORY
set -eu
suite=$1 package=$2 program=$3 directory=$4
apt=$directory/apt root=$directory/root
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/empty" "$apt/packages" "$root" "$directory/bin"
: >"$apt/status"

# The mirror is the one that this machine uses.
mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' |
    grep -Ev '^[^ ]*(security|updates|backports)' | cut -d ' ' -f 2 | head -n 1)
[ -n "$mirror" ] || { echo "apt knows no mirror of Debian; run apt-get update first" >&2; exit 1; }
for keyring in /usr/share/keyrings/debian-archive-keyring.*; do :; done
echo "deb [signed-by=$keyring] $mirror $suite main" >"$apt/sources.list"

private_apt() {
    apt-get -qq -o Dir::Etc="$apt/empty" -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts="$apt/empty" \
        -o Dir::State="$apt" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
        -o Acquire::Languages=none -o APT::Sandbox::User="$(id -un)" "$@"
}
private_apt update
# Of the closure only libraries, by their names: what else a package asks for serves its installation.
needed=$(private_apt --yes --no-install-recommends --print-uris install $package | cut -d ' ' -f 2 | cut -d _ -f 1 |
    grep -E '^(lib|zlib)' | grep -Ev '^libperl|-perl$')
cd "$apt/packages"
private_apt download $package $needed
for file in *.deb; do dpkg-deb -x "$file" "$root"; done
cd "$directory"
rm -rf "$apt"

# A program starts with the loader that it names, and that one is of this machine; so the loader is started instead.
loader=$(cd "$root" && find usr/lib lib -name 'ld-linux*' 2>/dev/null | head -n 1)
libraries=${loader%/*}
libraries=${libraries##*/}
cat >"bin/${program##*/}" <<SCRIPT
#!/bin/sh
root=\${0%/*}/../root
exec "\$root/$loader" --library-path "\$root/usr/lib/$libraries:\$root/lib/$libraries" "\$root/$program" "\$@"
SCRIPT
chmod +x "bin/${program##*/}"
