package convert

import "maps"

// Outside holds the rules and macros of the attributes files outside the tree: the file info/attributes in the git
// directory, the user's file and the machine's file. It is immutable.
type Outside struct {
	above *File   // rules of the git directory's file, which take precedence over the tree's files
	below []*File // rules of the user's file, then those of the machine's file; the tree's files take precedence
	// macros[0] holds the macros of the files in below, and macros[1] holds the macros of the file above.
	macros [2]map[string][]assignment
	root   *File // the file of the root directory that is used if the tree has none; it holds the macros above
}

// NewOutside parses the contents of three files: /etc/gitattributes (machine), the file of core.attributesFile (user),
// and info/attributes in the git directory (gitDir). Each of them may define macros. The parameter of a missing file is
// nil. The parameter ignoreCase has the value of Settings.IgnoreCase. NewOutside returns nil if the files contain no
// rules and no macros.
func NewOutside(machine, user, gitDir []byte, ignoreCase bool) *Outside {
	o := &Outside{}
	read := func(content []byte, scope int) *File {
		p := parser{macrosMay: true, fold: ignoreCase}
		p.read(content)
		if len(p.macros) > 0 && o.macros[scope] == nil {
			o.macros[scope] = map[string][]assignment{}
		}
		maps.Copy(o.macros[scope], p.macros)
		return &File{rules: p.rules}
	}
	below := read(machine, 0)
	o.below = []*File{read(user, 0), below}
	o.above = read(gitDir, 1)
	if len(o.above.rules)+len(o.below[0].rules)+len(o.below[1].rules)+len(o.macros[0])+len(o.macros[1]) == 0 {
		return nil
	}
	o.root = Settings{IgnoreCase: ignoreCase, Outside: o}.Parse(nil, true)
	return o
}

// mergeMacros returns the macros from the file in the root directory, which are in the parameter root, together with
// the macros from outside the tree. If a macro has several definitions, the definition in the git directory's file
// takes precedence over the definition in the root directory, which takes precedence over definitions in the user's and
// the machine's files.
func (o *Outside) mergeMacros(root map[string][]assignment) map[string][]assignment {
	if o == nil || len(o.macros[0])+len(o.macros[1]) == 0 {
		return root
	}
	all := map[string][]assignment{}
	maps.Copy(all, o.macros[0])
	maps.Copy(all, root)
	maps.Copy(all, o.macros[1])
	for name, body := range all { // each slice is copied, because File.define modifies it in place
		all[name] = append([]assignment(nil), body...)
	}
	return all
}
