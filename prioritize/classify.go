package prioritize

import "strings"

// Classify derives from a path how soon its contents will be read. depth is the number of
// directories between the root of the tree and the file: 0 for files of the root. The result is
// Manifest or a less urgent class: the more urgent ones describe what a process does, not what a
// file is.
func Classify(path string, depth int) Class {
	c, _ := classify(path, depth)
	return c
}

// rank orders the wants of one class: near the root first and, at equal distance, those with the
// later trait last. The classes that describe what a process does have no rank: there the order of
// the wants counts.
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

// classify is Classify that also returns the traits of the file name, which decide the rank. The
// order of the cases is the precedence.
func classify(path string, depth int) (Class, traits) {
	dir, name := "", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		dir, name = path[:i], path[i+1:]
	}
	// Directory names decide over file names: a Go file in a vendored directory is not read like
	// the project's own.
	place := placeTraits(strings.ToLower(dir))
	is := exactNames[name]
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
		return Manifest, is // go reads it before it looks at any vendored package
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
		// Documents in the root are fetched after the other files of the root.
		if is&doc != 0 {
			is |= later
		}
		return Root, is
	case is&source != 0:
		return Source, is
	case is&doc != 0:
		return Doc, is
	// A file without extension in a directory of scripts is probably a program.
	case place&scripts != 0 && strings.IndexByte(name, '.') < 0:
		return Source, is | later
	}
	return Other, is
}

// placeTraits returns the traits of a directory path, which is in lower case.
func placeTraits(dir string) traits {
	var t traits
	if dir == "t" || strings.HasPrefix(dir, "t/") {
		t = test // perl's and git's own tests
	}
	for dir != "" {
		var part string
		part, dir, _ = strings.Cut(dir, "/")
		t |= directories[part]
	}
	return t
}

// nameTraits returns the traits of a file name in lower case. The whole name takes precedence over
// its beginning and end, and these over its extension.
func nameTraits(name string) traits {
	if t, ok := fileNames[name]; ok {
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
	// The part before the extension may say more than it: "a.test.ts".
	if i := strings.LastIndexByte(stem, '.'); i > 0 {
		if t := innerParts[stem[i+1:]]; t != 0 {
			return t | extensions[ext]
		}
	}
	if t := fileNames[stem]; t&doc != 0 && extensions[ext]&source == 0 {
		return t // LICENSE.APACHE is a licence, but history.js is program text
	}
	return extensions[ext]
}
