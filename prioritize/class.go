// Package prioritize says what is likely to be read next: classes of urgency, and a queue ordered by them.
package prioritize

import "strconv"

// Class is how urgent a blob is; lower is more urgent.
type Class uint8

const (
	Waiting   Class = iota // a process is blocked until it comes
	Sibling                // next to what somebody waits for
	Readahead              // a user's prefetch, or what a crawling reader will come to
	Manifest               // manifests, lock files, build, CI and agent configuration
	Readme                 // README and its kin
	Root                   // other text files of the root directory
	Source                 // program text
	Test                   // tests and their fixtures
	Doc                    // documentation and examples
	Other                  // unknown kinds, data, vendored and generated files
	Media                  // images, archives, binaries

	Last = Media // the least urgent class
)

func (c Class) String() string { return "class " + strconv.Itoa(int(c)) }

// Classify guesses from a path alone how soon its content will be read. Depth is how many directories lie
// between the root of the tree and the file: 0 for the root's own files.
func Classify(path string, depth int) Class { return Other }
