package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// spdxDocument contains the fields of an SPDX 2.3 document that a list of modules needs
// (https://spdx.github.io/spdx-spec/v2.3).
type spdxDocument struct {
	Version           string             `json:"spdxVersion"`
	DataLicense       string             `json:"dataLicense"`
	ID                string             `json:"SPDXID"`
	Name              string             `json:"name"`
	DocumentNamespace string             `json:"documentNamespace"`
	CreationInfo      spdxCreation       `json:"creationInfo"`
	Packages          []spdxPackage      `json:"packages"`
	Relationships     []spdxRelationship `json:"relationships"`
}

// spdxCreation is the time at which the document was created, and the tool that created it.
type spdxCreation struct {
	Created  time.Time `json:"created"`
	Creators []string  `json:"creators"`
}

// spdxPackage is one package of the document: the program, or a module in it.
type spdxPackage struct {
	Name             string            `json:"name"`
	ID               string            `json:"SPDXID"`
	Version          string            `json:"versionInfo"`
	DownloadLocation string            `json:"downloadLocation"`
	FilesAnalyzed    bool              `json:"filesAnalyzed"`
	Checksums        []spdxChecksum    `json:"checksums,omitempty"`
	References       []spdxExternalRef `json:"externalRefs,omitempty"`
}

// spdxChecksum is the hash of a package, in hexadecimal.
type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

// spdxExternalRef is the name of a package in another naming system, such as a package URL.
type spdxExternalRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

// spdxRelationship states the relationship of the package Element to the package Related, such as DEPENDS_ON. Both are
// SPDX IDs in this document.
type spdxRelationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

// writeSBOM writes an SPDX document that lists the standard library and the modules that the go command has recorded in
// a program. The document contains the checksum of the program. It contains no checksums of the modules, because go.sum
// uses a hash algorithm that SPDX does not support.
func writeSBOM(w io.Writer, program string, when time.Time) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return fmt.Errorf("read modules of %s: %w", program, err)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	sum := digest(data)
	name := filepath.Base(program)
	d := spdxDocument{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name,
		// The namespace must be unique for each document. The hash of the program makes it unique.
		DocumentNamespace: "https://" + info.Main.Path + "/spdx/" + sum,
		CreationInfo:      spdxCreation{when, []string{"Tool: " + info.Main.Path + "/internal/dist"}},
	}
	main := goPackage(info.Main.Path, info.Main.Version)
	main.Name, main.Checksums = name, []spdxChecksum{{"SHA256", sum}}
	d.Packages = append(d.Packages, main)
	d.Relationships = append(d.Relationships, spdxRelationship{d.ID, "DESCRIBES", main.ID})
	modules := []spdxPackage{goPackage("stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		// If a module is replaced, its replacement was compiled.
		if m.Replace != nil {
			m = m.Replace
		}
		modules = append(modules, goPackage(m.Path, m.Version))
	}
	for _, p := range modules {
		d.Packages = append(d.Packages, p)
		d.Relationships = append(d.Relationships, spdxRelationship{main.ID, "DEPENDS_ON", p.ID})
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(d)
}

// goPackage returns the package for a Go module, with its package URL (https://github.com/package-url/purl-spec).
func goPackage(path, version string) spdxPackage {
	// An SPDX ID may contain only letters, digits, dots and dashes.
	id := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, path)
	return spdxPackage{
		Name: path, ID: "SPDXRef-Package-" + id, Version: version, DownloadLocation: "NOASSERTION",
		References: []spdxExternalRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + path + "@" + version}},
	}
}
