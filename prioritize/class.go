// Package prioritize says what is likely to be read next: classes of urgency guessed from paths, and a queue
// ordered by them. It is pure: it knows no clock, no disk and no network, and it locks nothing.
//
// What it promises: the same path always has the same class, whatever bytes it is made of, and a queue gives
// out what is queued exactly once, in one order: by class; within a class by nearness to the root and kind of
// file; then by age.
//
// The order of the classes follows what builds, editors and coding tools do in a fresh checkout: they look for
// manifests, settings and instructions first, then read the README and what else stands in the root
// directory, then program text from the root downwards; tests and documentation later; pictures and archives
// practically never.
package prioritize

import "strconv"

// Class is how urgent a blob is; lower is more urgent.
type Class uint8

const (
	Waiting   Class = iota // a process is blocked until it comes
	Sibling                // next to what somebody waits for
	Readahead              // asked for by a prefetch, or on the way of a crawling reader
	Manifest               // manifests, lock files; settings and instructions for build, CI, editors, coding tools
	Readme                 // README and its translations
	Root                   // the root directory's other text files
	Source                 // program text and what is compiled in with it
	Test                   // tests and their data
	Doc                    // documentation and examples
	Other                  // data, unknown kinds, generated and vendored files
	Media                  // images, fonts, sound, archives, binaries: large and seldom read

	Last = Media // the least urgent class

	classes = int(Last) + 1
)

func (c Class) String() string {
	switch c {
	case Waiting:
		return "waiting"
	case Sibling:
		return "sibling"
	case Readahead:
		return "readahead"
	case Manifest:
		return "manifest"
	case Readme:
		return "readme"
	case Root:
		return "root"
	case Source:
		return "source"
	case Test:
		return "test"
	case Doc:
		return "doc"
	case Other:
		return "other"
	case Media:
		return "media"
	}
	return "class " + strconv.Itoa(int(c))
}
