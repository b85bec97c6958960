# cmake --install: the program, decks, job scripts, the script that draws a run, documents. Everything finds its neighbours from where it stands.
include(GNUInstallDirs)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON) # libraries of modules and of Spack, which the loader does not know

install(DIRECTORY inputs DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera FILES_MATCHING PATTERN "*.toml")
install(FILES slurm/common.sh slurm/ends.sh slurm/start.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/slurm)
# The settings of sites, once there, are the sites'.
set(slurm_folder "\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/tessera/slurm")
install(CODE "
if(EXISTS \"\$ENV{DESTDIR}${slurm_folder}/site.sh\")
  message(STATUS \"keeps \$ENV{DESTDIR}${slurm_folder}/site.sh\")
else()
  file(INSTALL DESTINATION \"${slurm_folder}\" TYPE FILE FILES \"${PROJECT_SOURCE_DIR}/slurm/site.sh\")
endif()
foreach(folder slurm/site)
  file(GLOB sites \"${PROJECT_SOURCE_DIR}/\${folder}/*.sh\")
  foreach(site IN LISTS sites)
    get_filename_component(name \"\${site}\" NAME)
    if(NOT EXISTS \"\$ENV{DESTDIR}${slurm_folder}/../\${folder}/\${name}\")
      file(INSTALL DESTINATION \"${slurm_folder}/../\${folder}\" TYPE FILE FILES \"\${site}\")
    endif()
  endforeach()
endforeach()")
file(GLOB job_scripts CONFIGURE_DEPENDS slurm/train_*.sh)
install(PROGRAMS ${job_scripts} slurm/consolidate.sh slurm/finetune.sh slurm/local.sh slurm/preflight.sh slurm/sweep.sh
  DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/slurm)
install(DIRECTORY slurm/monitoring DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/slurm)
install(PROGRAMS scripts/plot_run DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/scripts)
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.png")
