package prioritize

import "strings"

// Classify predicts from a path how soon the file will be read. depth is the number of directories between the root
// of the tree and the file, 0 for files in the root. The result is Manifest or a less urgent class, since the more
// urgent classes depend on the processes that read, not on the path.
func Classify(path string, depth int) Class {
	c, _ := classify(path, depth)
	return c
}

// rank returns the position of a want within its class; wants with lower ranks are more urgent. Files near the root
// have lower ranks. At equal distance from the root, files with the trait called later have higher ranks. For classes
// more urgent than Manifest the rank does not depend on the path; all wants of these classes have rank 0, so they keep
// the order in which they were queued.
func rank(c Class, path string) uint8 {
	if c < Manifest {
		return 0
	}
	depth := min(strings.Count(path, "/"), 127)
	r := uint8(2 * depth)
	if _, t := classify(path, depth); t&later != 0 {
		r++
	}
	return r
}

// classify returns the class that Classify returns, and also the traits of the file name, on which the rank depends. If
// several cases apply, the first case determines the result.
func classify(path string, depth int) (Class, traits) {
	dir, name := "", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		dir, name = path[:i], path[i+1:]
	}
	// The traits of directories take precedence over the traits of the file name: a Go file in a vendored directory is
	// less likely to be read than a Go file of the project itself.
	place := placeTraits(strings.ToLower(dir))
	is := exactNames()[name]
	name = strings.ToLower(name)
	if is == 0 {
		is = nameTraits(name)
	}
	switch {
	case is&media != 0 && is&manifest == 0:
		return Media, is
	case place&fixture != 0:
		return Test, is
	case place&vendored != 0 && strings.HasSuffix(path, "vendor/modules.txt"):
		return Manifest, is // the go command reads vendor/modules.txt before it reads any vendored package
	case place&vendored != 0 || is&vendored != 0 && is&manifest == 0:
		return Other, is
	case strings.HasPrefix(name, "readme") && is&source == 0:
		return Readme, is
	case is&manifest != 0, place&settings != 0 && place&doc == 0:
		return Manifest, is
	case place&test != 0, is&(test|fixture) != 0:
		return Test, is
	case place&doc != 0:
		return Doc, is
	case depth == 0:
		// In the root directory, documents are less urgent than the other files.
		if is&doc != 0 {
			is |= later
		}
		return Root, is
	case is&source != 0:
		return Source, is
	case is&doc != 0:
		return Doc, is
	// A file that has no extension and is in a directory of scripts is probably a program.
	case place&scripts != 0 && strings.IndexByte(name, '.') < 0:
		return Source, is | later
	}
	return Other, is
}

// placeTraits returns the traits of all directories in the path dir, which must be in lower case.
func placeTraits(dir string) traits {
	var t traits
	if dir == "t" || strings.HasPrefix(dir, "t/") {
		t = test // perl, git and similar projects have their tests in a directory with the name t
	}
	for dir != "" {
		var part string
		part, dir, _ = strings.Cut(dir, "/")
		t |= directories()[part]
	}
	return t
}

// nameTraits returns the traits of a file name, which must be in lower case. If the whole name has traits, they are
// returned; otherwise the traits of its beginning or end; and otherwise those of the extension and of the part before
// the extension.
func nameTraits(name string) traits {
	if t, ok := fileNames()[name]; ok {
		return t
	}
	for _, a := range fileStarts {
		if strings.HasPrefix(name, a.text) {
			return a.is
		}
	}
	for _, a := range fileEnds {
		if strings.HasSuffix(name, a.text) {
			return a.is
		}
	}
	stem, ext := name, ""
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		stem, ext = name[:i], name[i+1:]
	}
	// The part before the extension may be more specific than the extension, as in "a.test.ts".
	if i := strings.LastIndexByte(stem, '.'); i > 0 {
		if t := innerParts()[stem[i+1:]]; t != 0 {
			return t | extensions()[ext]
		}
	}
	if t := fileNames()[stem]; t&doc != 0 && extensions()[ext]&source == 0 {
		// the part before the extension determines the traits only here: LICENSE.APACHE is a document, but history.js
		// is program text
		return t
	}
	return extensions()[ext]
}
