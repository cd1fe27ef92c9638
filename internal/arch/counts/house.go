package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// printFolders prints figures of the top folders that contain Go files: how many there are, how many imports there are
// between them, which of them import each other in a circle, and how many lines each has.
func printFolders(sources []*source) {
	lines, arrows := map[string]int{}, map[string]map[string]bool{}
	for _, s := range sources {
		from := top(s.dir)
		lines[from] += strings.Count(string(s.text), "\n")
		if arrows[from] == nil {
			arrows[from] = map[string]bool{}
		}
		for _, i := range s.ast.Imports {
			if name, ours := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), module); ours && top(name) != from {
				arrows[from][top(name)] = true
			}
		}
	}
	all := 0
	var circle []string
	for folder, to := range arrows {
		all += len(to)
		if reaches(arrows, folder)[folder] {
			circle = append(circle, folder)
		}
	}
	slices.Sort(circle)
	fmt.Printf("folders %d\nimports between folders %d\nfolders on a circle %d %s\n", len(lines), all, len(circle),
		strings.Join(circle, " "))
	printWorst("lines of folder", lines, len(lines))
}

// top returns the first element of a slash-separated path.
func top(path string) string {
	first, _, _ := strings.Cut(filepath.ToSlash(path), "/")
	return first
}

// reaches returns the set of folders that the folder from imports, directly or through other folders. arrows maps each
// folder to the folders that it imports directly.
func reaches(arrows map[string]map[string]bool, from string) map[string]bool {
	found := map[string]bool{}
	for next := []string{from}; len(next) > 0; {
		folder := next[0]
		next = next[1:]
		for other := range arrows[folder] {
			if !found[other] {
				found[other] = true
				next = append(next, other)
			}
		}
	}
	return found
}

// printUntested prints the packages of the product without a test file.
func printUntested(dir string, packages map[string][]*source) error {
	var without []string
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		tests, err := filepath.Glob(filepath.Join(dir, name, "*_test.go"))
		if err != nil {
			return err
		}
		if len(tests) == 0 {
			without = append(without, name)
		}
	}
	fmt.Printf("packages without tests %d %s\n", len(without), strings.Join(without, " "))
	return nil
}

// printBodies prints how many functions of at least five lines have the same body as another function.
func printBodies(sources []*source) {
	places := map[string][]string{}
	for _, s := range sources {
		lines := strings.Split(string(s.text), "\n")
		for start := 0; start < len(lines); start++ {
			if !strings.HasPrefix(lines[start], "func ") {
				continue
			}
			end := start + 1
			for end < len(lines) && lines[end] != "}" {
				end++
			}
			if end-start > 5 && end < len(lines) {
				body := strings.Join(lines[start+1:end], "\n")
				places[body] = append(places[body], fmt.Sprintf("%s:%d", s.path, start+1))
			}
			start = end
		}
	}
	again := 0
	var found []string
	for _, at := range places {
		if len(at) > 1 {
			again += len(at) - 1
			found = append(found, strings.Join(at, "="))
		}
	}
	slices.Sort(found)
	fmt.Printf("functions with the body of another %d %s\n", again, strings.Join(found, " "))
}

// printDocuments prints the number of words in all Markdown documents, and the longest documents with their sizes in
// bytes.
func printDocuments(dir string, worst int) error {
	words, bytes := 0, map[string]int{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != dir && (d.Name()[0] == '.' || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		words += len(strings.Fields(string(text)))
		bytes[rel] = len(text)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Printf("words of documents %d\n", words)
	printWorst("bytes of page", bytes, worst)
	return nil
}
