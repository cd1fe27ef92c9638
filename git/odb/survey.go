package odb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// Survey counts the files and objects of an `objects` directory.
type Survey struct {
	Packs   int   // number of packs
	Objects int64 // number of objects in packs; an object that is in n packs is counted n times
	// Loose is the number of loose objects.
	Loose int64
	Bytes int64 // total size of the files
}

// Problem describes a file of an `objects` directory that is damaged or useless.
type Problem struct {
	Path string // path of the file
	What string // description of the damage, for the user
	Junk bool   // whether the file is useless and can be removed
}

// Look counts packs, objects and bytes without reading the contents of objects. If dir does not exist, all counts are
// zero.
func Look(dir string, f object.Format) (Survey, error) {
	var s Survey
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && e.IsDir() {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) { // a join may have removed the file after the directory was listed
			return nil
		}
		if err != nil {
			return err
		}
		s.Bytes += info.Size()
		// A loose object is a file whose directory is named by the first two hexadecimal digits of its id. The name of
		// the file consists of the remaining digits.
		switch parent := filepath.Base(filepath.Dir(path)); {
		case filepath.Ext(path) == ".pack":
			s.Packs++
			s.Objects += packCount(path)
		case len(parent) == 2 && len(e.Name()) == 2*f.Size()-2:
			s.Loose++
		}
		return nil
	})
	if err != nil {
		return s, fmt.Errorf("list objects: %w", err)
	}
	return s, nil
}

// packCount returns the number of objects that the header of a pack states (gitformat-pack(5)), or 0 if the header
// cannot be read.
func packCount(path string) int64 {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	var head [12]byte
	if _, err := io.ReadFull(f, head[:]); err != nil || string(head[:4]) != "PACK" {
		return 0
	}
	return int64(binary.BigEndian.Uint32(head[8:]))
}

// Check returns the packs and indexes that are incomplete or do not belong together. If deep is set, it also reads each
// pack and compares it with its hash. It does not decode objects, because they are verified whenever they are read.
func Check(dir string, f object.Format, deep bool) ([]Problem, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "pack"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("check objects: %w", err)
	}
	there := map[string]bool{}
	for _, e := range entries {
		there[e.Name()] = true
	}
	var problems []Problem
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		name := strings.TrimSuffix(e.Name(), ext)
		path := filepath.Join(dir, "pack", e.Name())
		switch ext {
		case ".pack":
			if !there[name+".idx"] {
				problems = append(problems, Problem{Path: path, What: "pack has no index, so its objects cannot be found"})
				continue
			}
			// If another process removes the pack during the check, the pack is not a problem.
			if err := checkPair(path, strings.TrimSuffix(path, ext)+".idx", f, deep); err != nil &&
				!errors.Is(err, fs.ErrNotExist) {
				problems = append(problems, Problem{Path: path, What: err.Error()})
			}
		case ".idx", ".rev", ".promisor", ".bitmap", ".mtimes":
			if !there[name+".pack"] && gone(path) {
				problems = append(problems, Problem{Path: path, What: "pack of this file is missing", Junk: true})
			}
		}
	}
	return problems, nil
}

// gone reports whether the index at path exists although its pack does not. The caller did not find the pack when it
// listed the directory. But processes may create packs at any time, so gone looks up both files again.
func gone(path string) bool {
	_, err := os.Lstat(path)
	_, packErr := os.Lstat(strings.TrimSuffix(path, filepath.Ext(path)) + ".pack")
	return err == nil && errors.Is(packErr, fs.ErrNotExist)
}

// checkPair returns ErrCorrupt if the pack or its index is damaged, or if they do not belong together.
func checkPair(pack, idx string, f object.Format, deep bool) error {
	data, err := os.ReadFile(idx)
	if err != nil {
		return err
	}
	x, err := ParseIndex(data, f)
	if err != nil {
		return err
	}
	if own := data[len(data)-x.idLen:]; !bytes.Equal(sumOf(f, bytes.NewReader(data[:len(data)-x.idLen])), own) {
		return corrupt("checksum of the index is wrong")
	}
	file, err := os.Open(pack)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	// If the file is shorter than a trailer, end is negative and the read below returns an error.
	end := info.Size() - int64(f.Size())
	trailer := make([]byte, f.Size())
	if _, err := file.ReadAt(trailer, max(end, 0)); err != nil || !bytes.Equal(trailer, x.packSum()) {
		return corrupt("pack does not match its index, or is truncated")
	}
	if packCount(pack) != int64(x.n) {
		return corrupt("number of objects in the pack's header does not match the index")
	}
	if deep && !bytes.Equal(sumOf(f, io.NewSectionReader(file, 0, end)), trailer) {
		return corrupt("checksum of the pack is wrong")
	}
	return nil
}

// sumOf returns the hash of the bytes of r, or nil if they cannot be read.
func sumOf(f object.Format, r io.Reader) []byte {
	h := f.New()
	if _, err := io.Copy(h, r); err != nil {
		return nil
	}
	return h.Sum(nil)
}
