package convert

import (
	"slices"
	"strings"
)

// git ignores a line or a file whose length reaches these limits, and prints a warning.
const (
	maxLine = 2048      // length of a line in bytes, without the line end
	maxFile = 100 << 20 // length of a file in bytes
)

// attr identifies an attribute. The numbers from macroBase on stand for the macros that the file in the root directory
// defines.
type attr int32

const (
	attrText attr = iota
	attrCRLF
	attrEOL
	attrIdent
	attrFilter
	attrEncoding
	numValues              // number of attributes whose values affect a conversion
	attrBinary = numValues // the macro that is built into git; attributes files may define it again
	macroBase  = attrBinary + 1

	attrNamed attr = -1 // any other attribute; it may be a macro that the file in the root directory defines
)

// attrOf returns the attribute with the given name, or attrNamed if it is not one of the constants.
func attrOf(name string) attr {
	switch name {
	case "text":
		return attrText
	case "crlf":
		return attrCRLF
	case "eol":
		return attrEOL
	case "ident":
		return attrIdent
	case "filter":
		return attrFilter
	case "working-tree-encoding":
		return attrEncoding
	case "binary":
		return attrBinary
	}
	return attrNamed
}

// inert reports whether name is an attribute, of git or of a hosting service, that does not affect conversion. A file
// that sets only such attributes need not be kept in memory. It is assumed that no file in the root directory defines a
// macro with one of these names.
func inert(name string) bool {
	switch name {
	case "diff", "merge", "whitespace", "export-ignore", "export-subst", "delta", "encoding",
		"conflict-marker-size", "lockable":
		return true
	}
	return strings.HasPrefix(name, "linguist-") || strings.HasPrefix(name, "gitlab-")
}

// state is the state that attributes files assign to an attribute of a path (gitattributes(5)).
type state uint8

const (
	undecided   state = iota // no line has mentioned the attribute
	unspecified              // the line has "!text"; treated as if no line had mentioned the attribute
	set                      // the line has "text"
	unset                    // the line has "-text"
	valued                   // the line has "text=auto", that is, a value
)

// value is an attribute's state and, if it is valued, its text.
type value struct {
	state state  // state of the attribute
	text  string // the value of the attribute, which is the part after "="; set only if state is valued
}

// assignment is one attribute in a line, after the pattern or the name of a macro.
type assignment struct {
	attr  attr
	name  string // the name of the attribute; set only if attr is attrNamed
	value value
}

// rule is one line of an attributes file: a pattern, and the attributes of the paths that match.
type rule struct {
	pattern pattern
	assigns []assignment // in the order of the line; if an attribute occurs several times, the last assignment counts
}

// File is a parsed attributes file.
//
// In the file of the root directory, the names of macros are resolved when the file is parsed. Files of other
// directories store an attribute that may be a macro by its name (attrNamed), because the same File may be used with
// different root files.
type File struct {
	rules []rule
	// macros holds the attributes that each macro sets. The index is an attr; the element of an attribute that is not a
	// macro is nil. macros is set only in the file of the root directory.
	macros [][]assignment
	names  map[string]attr // numbers of the macros that files define, by name; set only in the file of the root directory
}

// builtin contains only the macros that git itself defines. It stands for a missing file in the root directory.
var builtin = Parse(nil, true)

// Parse parses the contents of a .gitattributes file like Settings.Parse, with the zero Settings.
func Parse(content []byte, root bool) *File { return Settings{}.Parse(content, root) }

// Parse parses the contents of a .gitattributes file. The parameter root is true for the file in the root directory,
// which may define macros. Like git, Parse accepts every file: it ignores invalid lines, a NUL byte ends the file, and
// a byte order mark is part of the first pattern. When git checks out a commit, it ignores the mode of .gitattributes.
// So if the file is a symbolic link, callers must pass the target of the link as the contents.
func (s Settings) Parse(content []byte, root bool) *File {
	f := &File{}
	p := parser{macrosMay: root, fold: s.IgnoreCase}
	p.read(content)
	if root {
		f.define(s.Outside.mergeMacros(p.macros))
	}
	for _, r := range p.rules {
		if root {
			r.assigns = f.resolve(r.assigns)
		}
		if len(r.assigns) > 0 {
			r.assigns = slices.Clip(r.assigns)
			f.rules = append(f.rules, r)
		}
	}
	f.rules = slices.Clip(f.rules)
	return f
}

// define sets the macros of f, the file of the root directory. The parameter defs holds all definitions of macros;
// define uses those that may affect a conversion, directly or through another macro.
func (f *File) define(defs map[string][]assignment) {
	f.names = map[string]attr{}
	f.macros = make([][]assignment, macroBase)
	f.macros[attrBinary] = []assignment{
		{attrNamed, "diff", value{state: unset}},
		{attrNamed, "merge", value{state: unset}},
		{attrText, "", value{state: unset}},
	}
	matters := func(a assignment) bool {
		_, macro := defs[a.name]
		return a.attr != attrNamed || macro
	}
	ids := make([]attr, 0, len(defs))
	bodies := make([][]assignment, 0, len(defs))
	for name, body := range defs {
		id := attrOf(name)
		if id == attrNamed {
			if !slices.ContainsFunc(body, matters) {
				continue
			}
			id = attr(len(f.macros))
			f.names[name] = id
			f.macros = append(f.macros, nil)
		}
		ids, bodies = append(ids, id), append(bodies, body)
	}
	for i, id := range ids {
		f.macros[id] = bodies[i]
	}
	for id, body := range f.macros {
		f.macros[id] = slices.Clip(f.resolve(body))
	}
}

// resolve replaces each macro name in the list as by the number of the macro. It also removes, in place, the attributes
// that neither affect a conversion nor are macros of f, which is the file of the root directory.
func (f *File) resolve(as []assignment) []assignment {
	keep := as[:0]
	for _, a := range as {
		if a.attr == attrNamed {
			id, ok := f.names[a.name]
			if !ok {
				continue
			}
			a.attr, a.name = id, ""
		}
		keep = append(keep, a)
	}
	return keep
}

// Matters reports whether the file can affect a conversion. If Matters returns false, Decide returns the same rules
// with and without the file. Matters assumes that no root file defines a macro with the name of an attribute that inert
// knows.
func (f *File) Matters() bool {
	if f == nil {
		return false
	}
	if f.macros != nil { // f is the file of the root directory, and Parse has kept only rules that affect a conversion
		return len(f.rules) > 0 || len(f.names) > 0 || f.redefines()
	}
	for _, r := range f.rules {
		for _, a := range r.assigns {
			if a.attr != attrNamed || !inert(a.name) {
				return true
			}
		}
	}
	return false
}

// redefines reports whether the file defines a macro with the name of an attribute that affects conversion, or
// redefines the macro binary.
func (f *File) redefines() bool {
	for id := range numValues {
		if len(f.macros[id]) > 0 {
			return true
		}
	}
	b := f.macros[attrBinary]
	return len(b) != 1 || b[0] != assignment{attrText, "", value{state: unset}}
}

// walk is the state of one look-up of the attributes of a path. Every look-up uses a new walk. A walk needs an
// allocation only if the root's file defines more than about 250 macros.
type walk struct {
	values [numValues]value
	open   uint8     // bit set of the attributes that are sought and not decided yet
	few    [4]uint64 // bit set of the decided attributes whose numbers are below 256
	more   []uint64  // bit set of the decided attributes whose numbers are 256 or more
	// root is the file that defines the macros.
	root *File
}

// decide marks an attribute as decided. It returns false if the attribute was decided before the call.
func (w *walk) decide(id attr) bool {
	word, bit := int(id/64), uint64(1)<<(id%64)
	p := &w.few[word%len(w.few)]
	if word >= len(w.few) {
		p = &w.more[word-len(w.few)]
	}
	if *p&bit != 0 {
		return false
	}
	*p |= bit
	return true
}

// collect returns the values that the files assign to the attributes of path. The parameter sought is a bit set of
// attributes; the values of other attributes may be missing in the result.
//
// As in git, the first value that is found for an attribute counts. The files are searched in this order: the git
// directory's info/attributes, then the files of the tree from the deepest directory up, then the user's and the
// machine's file. A file is searched from its last matching line to its first, and a line from its last attribute to
// its first. If a macro is found to be set, the attributes that it sets are searched next.
func (s Settings) collect(files []*File, path string, sought uint8) [numValues]value {
	w := walk{open: sought, root: builtin}
	switch {
	case len(files) > 0 && files[0] != nil && files[0].macros != nil:
		w.root = files[0]
	case s.Outside != nil:
		w.root = s.Outside.root
	}
	if words := (len(w.root.macros) + 63) / 64; words > len(w.few) {
		w.more = make([]uint64, words-len(w.few))
	}
	if s.IgnoreCase {
		path = lower(path)
	}
	at := strings.LastIndexByte(path, '/') + 1 // start of the path relative to the directory of the current file
	base := path[at:]
	if s.Outside != nil && w.file(s.Outside.above, path, base) {
		return w.values
	}
	for depth := strings.Count(path, "/"); depth >= 0; depth-- {
		if depth < len(files) && w.file(files[depth], path[at:], base) {
			return w.values
		}
		if depth > 0 {
			at = strings.LastIndexByte(path[:at-1], '/') + 1
		}
	}
	if s.Outside != nil {
		for _, f := range s.Outside.below {
			if w.file(f, path, base) {
				break
			}
		}
	}
	return w.values
}

// file applies the rules of the file f, which may be nil. The parameter path is relative to the directory of f, and
// base is the last element of path. The result is true if all sought attributes are decided.
func (w *walk) file(f *File, path, base string) bool {
	if f == nil {
		return false
	}
	for i := len(f.rules) - 1; i >= 0; i-- {
		if f.rules[i].pattern.match(path, base) {
			w.fill(f.rules[i].assigns)
			if w.open == 0 {
				return true
			}
		}
	}
	return false
}

// fill decides the attributes in the list as that are still undecided. It uses a stack on the heap instead of
// recursion, because a file may define millions of macros, each of which sets the next one. fill reads the list from
// its end, because within a line the last assignment of an attribute counts.
func (w *walk) fill(as []assignment) {
	var few [8][]assignment
	stack := append(few[:0], as)
	for len(stack) > 0 {
		top := &stack[len(stack)-1]
		if len(*top) == 0 {
			stack = stack[:len(stack)-1]
			continue
		}
		a := &(*top)[len(*top)-1]
		*top = (*top)[:len(*top)-1]
		id := a.attr
		if id == attrNamed {
			var macro bool
			if id, macro = w.root.names[a.name]; !macro {
				continue
			}
		}
		if !w.decide(id) {
			continue
		}
		if id < numValues {
			w.values[id] = a.value
			w.open &^= 1 << id
		}
		if a.value.state == set {
			stack = append(stack, w.root.macros[id])
		}
	}
}
