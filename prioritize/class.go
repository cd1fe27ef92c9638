// Package prioritize predicts which files will be read next. It assigns a class of urgency to each path, and has a
// queue of wants (blobs to request) that is ordered by these classes. It uses no clock, disk, network or lock.
//
// Promises: the class of a path never changes, and every path has a class, even if the path is not valid UTF-8. A queue
// returns each want exactly once. It orders wants by class; within a class by distance from the root and kind of file;
// and finally by age.
//
// The order of the classes is the order in which builds, editors and coding tools usually read a fresh checkout:
// manifests, settings and instructions; then the README and the other files of the root directory; then program text,
// from the root downwards; then tests and documentation; and almost never images and archives.
package prioritize

import "strconv"

// Class states how urgently a blob is needed. A lower class is more urgent.
type Class uint8

const (
	Waiting Class = iota // a process waits for the blob
	Sibling              // fetched together with a blob for which a process waits, such as the blob of a neighbouring file
	// a prefetch command names the blob, or a process that reads the whole tree will need the blob next
	Readahead
	// the file is in the read profile of the mount, because programs have read it in earlier mounts
	Profile
	Manifest // manifests, lock files, settings, and instructions for coding tools
	Readme   // README and its translations
	Root     // the other text files in the root directory
	Source   // program text, and other files that are compiled with it
	Test     // tests and the data of tests
	Doc      // documentation and examples
	Other    // data, files of unknown kind, generated and vendored files
	Media    // images, fonts, sound, archives, binaries: large and seldom read

	Last = Media // the least urgent class

	classes = int(Last) + 1
)

// String returns the name of the class for logs.
func (c Class) String() string {
	switch c {
	case Waiting:
		return "waiting"
	case Sibling:
		return "sibling"
	case Readahead:
		return "readahead"
	case Profile:
		return "profile"
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
