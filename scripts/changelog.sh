#!/bin/sh
# changelog.sh: moves the items in changelog/unreleased/KIND-NAME.md to the top of their section of CHANGELOG.md. KIND is added, changed
# or fixed. It runs before a release; until then, changes that are made at the same time do not touch the same file.
set -eu
cd "$(dirname "$0")/.."
for file in changelog/unreleased/*.md; do
	[ -e "$file" ] || continue
	case ${file##*/} in
	added-*) section=Added ;;
	changed-*) section=Changed ;;
	fixed-*) section=Fixed ;;
	*) echo "changelog.sh: $file: want the name added-, changed- or fixed-NAME.md" >&2 && exit 1 ;;
	esac
	grep -q "^### $section\$" CHANGELOG.md
	sed -i "0,/^### $section\$/{/^### $section\$/r $file
}" CHANGELOG.md
	rm "$file"
done
