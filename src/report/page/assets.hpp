// What a page is made with, as the build found it. assets.cpp is made of page.css, page.js and the library that draws charts.
#pragma once

namespace tessera {

extern const char* const page_style;
extern const char* const page_script;
/// dygraphs' script; empty where the build found none.
extern const char* const chart_library;

}  // namespace tessera
