// Package prioritize predicts what will be read next: classes of urgency derived from paths, and a
// queue ordered by them. It is pure: it uses no clock, disk or network, and no locks.
//
// Promises: a path always has the same class, whatever bytes it consists of. A queue returns each
// want exactly once, in this order: by class; within a class by distance from the root and kind of
// file; then by age.
//
// The order of the classes follows builds, editors and coding tools in a fresh checkout: they look
// for manifests, settings and instructions first, then read the README and the other files of the
// root directory, then program text from the root downwards; tests and documentation later;
// pictures and archives almost never.
package prioritize

import "strconv"

// Class is how urgent a blob is; lower is more urgent.
type Class uint8

const (
	Waiting   Class = iota // a process waits for it
	Sibling                // a neighbour of one that a process waits for
	Readahead              // asked for by a prefetch, or on the way of a crawling reader
	Manifest               // manifests, lock files; settings and instructions for build, CI, editors, coding tools
	Readme                 // README and its translations
	Root                   // the root directory's other text files
	Source                 // program text and files compiled with it
	Test                   // tests and their data
	Doc                    // documentation and examples
	Other                  // data, unknown kinds, generated and vendored files
	Media                  // images, fonts, sound, archives, binaries: large and seldom read

	Last = Media // the least urgent class

	classes = int(Last) + 1
)

// String returns the name of the class in logs.
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
